package trainmaster;

import java.io.IOException;
import java.io.InputStream;

import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.mapred.FileOutputCommitter;
import org.apache.hadoop.mapred.FileOutputFormat;
import org.apache.hadoop.mapred.JobConf;
import org.apache.hadoop.mapred.Reporter;
import org.apache.hadoop.mapreduce.JobID;
import org.apache.hadoop.mapreduce.TaskAttemptID;
import org.apache.hadoop.mapreduce.TaskID;
import org.apache.hadoop.mapreduce.TaskType;
import org.apache.hadoop.mapreduce.task.JobContextImpl;
import org.apache.hadoop.mapreduce.task.TaskAttemptContextImpl;

/**
 * What a program prints, record for record through an OutputFormat, a new part once one has been given so many bytes.
 *
 * <p>A part is a task of a MapReduce job in the eyes of the format and its committer: it is set up, written, committed, and
 * the job is committed at the end. Without an end of the records (we are killed, then) nothing is committed.
 */
final class Writing {
    private final Formats formats;
    private final Values values;
    private final Printed printed;
    private final long size;
    private final Class<?> keys;
    private final Class<?> contents;

    private interface Part {
        void write(Object key, Object value) throws Exception;

        void end() throws Exception;
    }

    Writing(Formats formats, InputStream from) {
        this.formats = formats;
        printed = new Printed(from);
        values = new Values(formats.told.get("records"));
        size = Long.parseLong(formats.told.get("part"));
        keys = formats.conf.getClass("mapreduce.job.output.key.class", Object.class);
        contents = formats.conf.getClass("mapreduce.job.output.value.class", Object.class);
    }

    void run() throws Exception {
        Object format = made();
        boolean fresh = format instanceof org.apache.hadoop.mapreduce.OutputFormat;
        JobID id = new JobID("trainmaster", 0);
        org.apache.hadoop.mapred.JobID oldId = org.apache.hadoop.mapred.JobID.downgrade(id);
        org.apache.hadoop.mapred.JobContext job = new org.apache.hadoop.mapred.JobContextImpl(formats.conf, oldId);
        org.apache.hadoop.mapreduce.OutputCommitter committer;
        if (fresh) {
            org.apache.hadoop.mapreduce.OutputFormat<?, ?> made = (org.apache.hadoop.mapreduce.OutputFormat<?, ?>) format;
            made.checkOutputSpecs(new JobContextImpl(formats.conf, id));
            committer = made.getOutputCommitter(new TaskAttemptContextImpl(formats.conf, attempt(id, 0)));
        } else {
            ((org.apache.hadoop.mapred.OutputFormat<?, ?>) format).checkOutputSpecs(FileSystem.get(formats.conf), formats.conf);
            committer = formats.conf.getOutputCommitter();
        }
        committer.setupJob(job);
        int number = 0;
        long given = 0;
        Part part = fresh ? part(id, 0) : oldPart(id, 0);
        while (next()) {
            if (given >= size) {
                part.end();
                number++;
                part = fresh ? part(id, number) : oldPart(id, number);
                given = 0;
            }
            given += record(part);
        }
        part.end();
        committer.commitJob(job);
    }

    private Object made() throws ClassNotFoundException {
        return formats.made(
                org.apache.hadoop.mapreduce.OutputFormat.class, org.apache.hadoop.mapred.OutputFormat.class);
    }

    private static TaskAttemptID attempt(JobID id, int number) {
        return new TaskAttemptID(new TaskID(id, TaskType.MAP, number), 0);
    }

    // -- records --

    private boolean next() throws IOException {
        printed.length = 0;
        return values.framed ? printed.frame() : printed.line();
    }

    private long record(Part part) throws Exception {
        int cut = 0;
        int begin = 0;
        if (values.framed && values.keyed) {
            cut = begin = printed.length;
            if (!printed.frame()) {
                throw new IOException("the last key that the program printed is without a value");
            }
        } else if (values.keyed) {
            while (cut < printed.length && printed.data[cut] != '\t') {
                cut++;
            }
            begin = Math.min(cut + 1, printed.length);
        }
        part.write(Values.decode(printed.data, 0, cut, keys), Values.decode(printed.data, begin, printed.length, contents));
        return printed.length + 1L;
    }

    // -- the two APIs --

    @SuppressWarnings("unchecked")
    private Part part(JobID id, int number) throws Exception {
        TaskAttemptContextImpl context = new TaskAttemptContextImpl(new JobConf(formats.conf), attempt(id, number));
        org.apache.hadoop.mapreduce.OutputFormat<Object, Object> format =
                (org.apache.hadoop.mapreduce.OutputFormat<Object, Object>) made(); // FileOutputFormat keeps its committer
        org.apache.hadoop.mapreduce.OutputCommitter committer = format.getOutputCommitter(context);
        committer.setupTask(context);
        org.apache.hadoop.mapreduce.RecordWriter<Object, Object> writer = format.getRecordWriter(context);
        return new Part() {
            @Override
            public void write(Object key, Object value) throws Exception {
                writer.write(key, value);
            }

            @Override
            public void end() throws Exception {
                writer.close(context);
                if (committer.needsTaskCommit(context)) {
                    committer.commitTask(context);
                }
            }
        };
    }

    @SuppressWarnings("unchecked")
    private Part oldPart(JobID id, int number) throws Exception {
        JobConf conf = new JobConf(formats.conf);
        conf.setCredentials(formats.conf.getCredentials());
        org.apache.hadoop.mapred.TaskAttemptID attempt =
                org.apache.hadoop.mapred.TaskAttemptID.downgrade(attempt(id, number));
        conf.set("mapreduce.task.attempt.id", attempt.toString());
        conf.setInt("mapreduce.task.partition", number);
        conf.setBoolean("mapreduce.task.ismap", true);
        org.apache.hadoop.mapred.TaskAttemptContext context =
                new org.apache.hadoop.mapred.TaskAttemptContextImpl(conf, attempt);
        org.apache.hadoop.mapred.OutputCommitter committer = conf.getOutputCommitter();
        Path place = FileOutputFormat.getOutputPath(conf);
        if (place != null && committer instanceof FileOutputCommitter) { // as MapReduce's own tasks do
            place = ((FileOutputCommitter) committer).getTaskAttemptPath(context);
        }
        if (place != null) {
            conf.set("mapreduce.task.output.dir", place.toString());
        }
        committer.setupTask(context);
        org.apache.hadoop.mapred.RecordWriter<Object, Object> writer =
                ((org.apache.hadoop.mapred.OutputFormat<Object, Object>) made())
                        .getRecordWriter(FileSystem.get(conf), conf, String.format("part-%05d", number), Reporter.NULL);
        return new Part() {
            @Override
            public void write(Object key, Object value) throws Exception {
                writer.write(key, value);
            }

            @Override
            public void end() throws Exception {
                writer.close(Reporter.NULL);
                if (committer.needsTaskCommit(context)) {
                    committer.commitTask(context);
                }
            }
        };
    }
}
