package trainmaster;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.BufferedOutputStream;
import java.io.FileDescriptor;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

import org.apache.hadoop.io.serializer.Deserializer;
import org.apache.hadoop.io.serializer.SerializationFactory;
import org.apache.hadoop.io.serializer.Serializer;
import org.apache.hadoop.mapred.JobConf;
import org.apache.hadoop.mapreduce.JobID;
import org.apache.hadoop.mapreduce.task.JobContextImpl;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.util.ReflectionUtils;

/**
 * Any InputFormat or OutputFormat, of either of Hadoop's two APIs, beside a program that knows nothing of Java.
 *
 * <p>What to do is read from the pipe named by the only argument: texts by name, Hadoop's settings, then splits as they
 * were serialized. The pipe stays open as long as whoever asked lives: its end is ours. Standard output is data alone,
 * so what others print goes to standard error, where lines that begin with MARK are ours: how far we are, or why we
 * failed.
 *
 * <pre>
 *   splits   getSplits, each serialized, to standard output
 *   read     the records of the splits given, to standard output    (Reading)
 *   write    records from standard input, through the OutputFormat  (Writing)
 * </pre>
 */
final class Formats {
    static final char MARK = '\u001e';
    private static final int FAILED = 3;

    final Map<String, String> told = new HashMap<>();
    final List<byte[]> splits = new ArrayList<>();
    final JobConf conf = new JobConf();
    private final DataInputStream control;

    private Formats(DataInputStream control) throws IOException {
        this.control = control;
        for (int left = control.readInt(); left > 0; left--) {
            told.put(text(), text());
        }
        for (int left = control.readInt(); left > 0; left--) {
            conf.set(text(), text());
        }
        for (int left = control.readInt(); left > 0; left--) {
            splits.add(bytes());
        }
        // An InputFormat that asks for delegation tokens finds those that we were given.
        conf.setCredentials(UserGroupInformation.getCurrentUser().getCredentials());
    }

    public static void main(String[] arguments) {
        OutputStream data = new FileOutputStream(FileDescriptor.out);
        System.setOut(System.err);
        int status = 0;
        try {
            Formats formats = new Formats(new DataInputStream(new FileInputStream(arguments[0])));
            formats.watch();
            formats.run(data);
        } catch (Throwable error) {
            Throwable cause = error;
            while (cause.getCause() != null
                    && (cause instanceof InvocationTargetException || cause.getClass() == RuntimeException.class)) {
                cause = cause.getCause();
            }
            error.printStackTrace();
            say("failed " + cause);
            status = FAILED;
        }
        System.err.flush();
        Runtime.getRuntime().halt(status); // threads that a format has left are no reason to stay
    }

    private void run(OutputStream data) throws Exception {
        switch (told.get("act")) {
            case "splits":
                writeSplits(new DataOutputStream(new BufferedOutputStream(data)));
                break;
            case "read":
                new Reading(this, data).run();
                break;
            case "write":
                new Writing(this, System.in).run();
                break;
            default:
                throw new IllegalArgumentException("no act " + told.get("act"));
        }
    }

    /** The format: an InputFormat or OutputFormat of the new API or the old one, as `fresh` or `old` say. */
    Object made(Class<?> fresh, Class<?> old) throws ClassNotFoundException {
        Class<?> found = conf.getClassByName(told.get("class"));
        if (!fresh.isAssignableFrom(found) && !old.isAssignableFrom(found)) {
            throw new ClassCastException(found.getName() + " is no " + fresh.getSimpleName());
        }
        return ReflectionUtils.newInstance(found, conf);
    }

    private void writeSplits(DataOutputStream to) throws Exception {
        Object format = made(org.apache.hadoop.mapreduce.InputFormat.class, org.apache.hadoop.mapred.InputFormat.class);
        List<Object> found = new ArrayList<>();
        if (format instanceof org.apache.hadoop.mapreduce.InputFormat) {
            found.addAll(((org.apache.hadoop.mapreduce.InputFormat<?, ?>) format)
                    .getSplits(new JobContextImpl(conf, new JobID("trainmaster", 0))));
        } else {
            for (Object split : ((org.apache.hadoop.mapred.InputFormat<?, ?>) format)
                    .getSplits(conf, Integer.parseInt(told.get("hint")))) {
                found.add(split);
            }
        }
        to.writeInt(found.size());
        for (Object split : found) {
            boolean fresh = split instanceof org.apache.hadoop.mapreduce.InputSplit;
            org.apache.hadoop.mapreduce.InputSplit one = fresh ? (org.apache.hadoop.mapreduce.InputSplit) split : null;
            org.apache.hadoop.mapred.InputSplit other = fresh ? null : (org.apache.hadoop.mapred.InputSplit) split;
            put(to, split.toString().getBytes("UTF-8"));
            to.writeLong(fresh ? one.getLength() : other.getLength());
            String[] hosts = fresh ? one.getLocations() : other.getLocations();
            put(to, String.join("\n", hosts == null ? new String[0] : hosts).getBytes("UTF-8"));
            put(to, serialized(split));
        }
        to.flush();
    }

    /** A split as Hadoop's own submitter writes it: its class, then what its serializer makes of it. */
    @SuppressWarnings("unchecked")
    private byte[] serialized(Object split) throws IOException {
        ByteArrayOutputStream into = new ByteArrayOutputStream();
        new DataOutputStream(into).writeUTF(split.getClass().getName());
        Serializer<Object> serializer = new SerializationFactory(conf).getSerializer((Class<Object>) split.getClass());
        if (serializer == null) {
            throw new IOException("no serializer for " + split.getClass().getName() + " (io.serializations)");
        }
        serializer.open(into);
        serializer.serialize(split);
        serializer.close();
        return into.toByteArray();
    }

    @SuppressWarnings("unchecked")
    Object split(byte[] serialized) throws Exception {
        ByteArrayInputStream from = new ByteArrayInputStream(serialized);
        Class<Object> type = (Class<Object>) conf.getClassByName(new DataInputStream(from).readUTF());
        Deserializer<Object> deserializer = new SerializationFactory(conf).getDeserializer(type);
        deserializer.open(from);
        return deserializer.deserialize(null);
    }

    /** End with whoever asked: nothing more comes over the pipe but its end. */
    private void watch() {
        Thread thread = new Thread(() -> {
            try {
                control.read();
            } catch (IOException error) {
                // as good as the end
            }
            Runtime.getRuntime().halt(FAILED);
        }, "watch");
        thread.setDaemon(true);
        thread.start();
    }

    /** One line to whoever asked. */
    static void say(String words) {
        PrintStream to = System.err;
        to.print(MARK + words.split("[\r\n]", 2)[0] + "\n");
        to.flush();
    }

    private String text() throws IOException {
        return new String(bytes(), "UTF-8");
    }

    private byte[] bytes() throws IOException {
        byte[] found = new byte[control.readInt()];
        control.readFully(found);
        return found;
    }

    private static void put(DataOutputStream to, byte[] data) throws IOException {
        to.writeInt(data.length);
        to.write(data);
    }
}
