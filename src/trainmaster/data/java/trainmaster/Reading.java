package trainmaster;

import java.io.Closeable;
import java.io.IOException;
import java.io.OutputStream;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Random;

import org.apache.hadoop.io.DataOutputBuffer;
import org.apache.hadoop.mapred.Reporter;
import org.apache.hadoop.mapreduce.TaskAttemptID;
import org.apache.hadoop.mapreduce.TaskID;
import org.apache.hadoop.mapreduce.JobID;
import org.apache.hadoop.mapreduce.TaskType;
import org.apache.hadoop.mapreduce.task.TaskAttemptContextImpl;

/**
 * The records of the splits, epoch after epoch, into the pipe that is a program's standard input.
 *
 * <p>With `shuffle` the splits come in another order each epoch and the records are drawn from a buffer; both follow from
 * the seed and the epoch. The cache keeps the records of each split that fits below its limit, packed, a file a split,
 * so that later epochs in any order need the source for none of them.
 */
final class Reading {
    private static final int TICK = 500; // ms
    private static final int BUFFER = 10_000; // records
    private static final int FULL = 256 * 1024; // bytes handed to the pipe at once

    private final Formats formats;
    private final Values values;
    private final OutputStream pipe;
    private final DataOutputBuffer held = new DataOutputBuffer(); // guarded by this
    private final List<byte[]> drawn = new ArrayList<>();
    private final long most = Runtime.getRuntime().maxMemory() / 4; // bytes in `drawn`
    private final Cache cache;
    private long waiting;
    private Random random;
    private volatile long count;
    private volatile long bytes;
    private volatile double progress;
    private volatile boolean early;

    Reading(Formats formats, OutputStream pipe) {
        this.formats = formats;
        this.pipe = pipe;
        values = new Values(formats.told.get("records"));
        cache = new Cache(formats.told.get("folder"), Long.parseLong(formats.told.get("cache")));
    }

    void run() throws Exception {
        Thread ticker = new Thread(this::tick, "tick");
        ticker.setDaemon(true);
        ticker.start();
        int epochs = Integer.parseInt(formats.told.get("epochs"));
        boolean shuffle = "true".equals(formats.told.get("shuffle"));
        long seed = Long.parseLong(formats.told.get("seed"));
        List<Integer> order = new ArrayList<>();
        for (int i = 0; i < formats.splits.size(); i++) {
            order.add(i);
        }
        for (int epoch = 0; epoch < epochs && !early; epoch++) {
            if (shuffle) {
                random = new Random(seed * 1_000_003L + epoch);
                Collections.sort(order);
                for (int i = order.size() - 1; i > 0; i--) {
                    Collections.swap(order, i, random.nextInt(i + 1));
                }
            }
            for (int i = 0; i < order.size() && !early; i++) {
                double before = (epoch + (double) i / order.size()) / epochs;
                read(order.get(i), before, 1.0 / epochs / order.size(), epochs > 1);
            }
            while (!drawn.isEmpty() && !early) {
                send(draw());
            }
        }
        flush();
        progress = 1.0;
        tell();
    }

    private void read(int number, double before, double part, boolean again) throws Exception {
        if (cache.replay(number, this::give)) {
            progress = before + part;
            return;
        }
        Cache.Draft draft = again ? cache.draft(number) : null;
        DataOutputBuffer record = new DataOutputBuffer();
        try (Source source = opened(formats.split(formats.splits.get(number)))) {
            while (!early && source.next(record)) {
                byte[] made = new byte[record.getLength()];
                System.arraycopy(record.getData(), 0, made, 0, made.length);
                if (draft != null && !draft.add(made)) {
                    draft = null;
                }
                give(made);
                if ((count & 1023) == 0) {
                    progress = before + part * Math.min(1.0, source.progress());
                }
            }
        }
        if (draft != null) {
            draft.end(!early);
        }
        progress = before + part;
    }

    /** Whether more are wanted. */
    private boolean give(byte[] record) throws IOException {
        if (random == null) {
            send(record);
            return !early;
        }
        while (!drawn.isEmpty() && !early && (drawn.size() >= BUFFER || waiting + record.length > most)) {
            send(draw());
        }
        drawn.add(record);
        waiting += record.length;
        return !early;
    }

    private byte[] draw() {
        int at = random.nextInt(drawn.size());
        Collections.swap(drawn, at, drawn.size() - 1);
        byte[] record = drawn.remove(drawn.size() - 1);
        waiting -= record.length;
        return record;
    }

    private synchronized void send(byte[] record) throws IOException {
        held.write(record);
        count++;
        if (held.getLength() >= FULL) {
            flush();
        }
    }

    /** A program that closes its input has had enough. */
    private synchronized void flush() {
        if (early || held.getLength() == 0) {
            return;
        }
        try {
            pipe.write(held.getData(), 0, held.getLength());
            bytes += held.getLength();
        } catch (IOException closed) {
            early = true;
        }
        held.reset();
    }

    /** Records do not wait for more of them, and those who look on are told. */
    private void tick() {
        try {
            while (true) {
                Thread.sleep(TICK);
                tell();
                flush();
            }
        } catch (InterruptedException end) {
            // nobody does that
        }
    }

    private void tell() {
        Formats.say("fed " + count + " " + bytes + " " + progress);
    }

    // -- the two APIs --

    private interface Source extends Closeable {
        boolean next(DataOutputBuffer into) throws Exception;

        double progress() throws Exception;
    }

    private Source opened(Object split) throws Exception {
        Object format = formats.made(
                org.apache.hadoop.mapreduce.InputFormat.class, org.apache.hadoop.mapred.InputFormat.class);
        return format instanceof org.apache.hadoop.mapreduce.InputFormat
                ? fresh((org.apache.hadoop.mapreduce.InputFormat<?, ?>) format,
                        (org.apache.hadoop.mapreduce.InputSplit) split)
                : old((org.apache.hadoop.mapred.InputFormat<?, ?>) format, (org.apache.hadoop.mapred.InputSplit) split);
    }

    private <K, V> Source fresh(org.apache.hadoop.mapreduce.InputFormat<K, V> format,
            org.apache.hadoop.mapreduce.InputSplit split) throws Exception {
        TaskAttemptID id = new TaskAttemptID(new TaskID(new JobID("trainmaster", 0), TaskType.MAP, 0), 0);
        TaskAttemptContextImpl context = new TaskAttemptContextImpl(formats.conf, id);
        org.apache.hadoop.mapreduce.RecordReader<K, V> reader = format.createRecordReader(split, context);
        reader.initialize(split, context);
        return new Source() {
            @Override
            public boolean next(DataOutputBuffer into) throws Exception {
                if (!reader.nextKeyValue()) {
                    return false;
                }
                into.reset();
                values.encode(reader.getCurrentKey(), reader.getCurrentValue(), into);
                return true;
            }

            @Override
            public double progress() throws Exception {
                return reader.getProgress();
            }

            @Override
            public void close() throws IOException {
                reader.close();
            }
        };
    }

    private <K, V> Source old(org.apache.hadoop.mapred.InputFormat<K, V> format,
            org.apache.hadoop.mapred.InputSplit split) throws IOException {
        org.apache.hadoop.mapred.RecordReader<K, V> reader = format.getRecordReader(split, formats.conf, Reporter.NULL);
        K key = reader.createKey();
        V value = reader.createValue();
        return new Source() {
            @Override
            public boolean next(DataOutputBuffer into) throws Exception {
                if (!reader.next(key, value)) {
                    return false;
                }
                into.reset();
                values.encode(key, value, into);
                return true;
            }

            @Override
            public double progress() throws Exception {
                return reader.getProgress();
            }

            @Override
            public void close() throws IOException {
                reader.close();
            }
        };
    }
}
