import java.io.DataInput;
import java.io.DataOutput;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;

import org.apache.hadoop.io.LongWritable;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.io.Writable;
import org.apache.hadoop.mapreduce.InputFormat;
import org.apache.hadoop.mapreduce.InputSplit;
import org.apache.hadoop.mapreduce.JobContext;
import org.apache.hadoop.mapreduce.RecordReader;
import org.apache.hadoop.mapreduce.TaskAttemptContext;

/**
 * An InputFormat as a team might write one: no file stands behind it. Each of `countdown.splits` counts down from
 * `countdown.from`; `countdown.fail` names the record of split 1 at which it throws.
 */
public class Countdown extends InputFormat<LongWritable, Text> {
    public static class Part extends InputSplit implements Writable {
        int number;

        @Override
        public long getLength() {
            return 100;
        }

        @Override
        public String[] getLocations() {
            return new String[] {"node" + number};
        }

        @Override
        public void write(DataOutput to) throws IOException {
            to.writeInt(number);
        }

        @Override
        public void readFields(DataInput from) throws IOException {
            number = from.readInt();
        }
    }

    @Override
    public List<InputSplit> getSplits(JobContext context) {
        List<InputSplit> found = new ArrayList<>();
        for (int i = 0; i < context.getConfiguration().getInt("countdown.splits", 4); i++) {
            Part part = new Part();
            part.number = i;
            found.add(part);
        }
        return found;
    }

    @Override
    public RecordReader<LongWritable, Text> createRecordReader(InputSplit split, TaskAttemptContext context) {
        int from = context.getConfiguration().getInt("countdown.from", 3);
        int failing = context.getConfiguration().getInt("countdown.fail", -1);
        int number = ((Part) split).number;
        System.out.println("counting down split " + number);
        return new RecordReader<LongWritable, Text>() {
            private int left = from + 1;

            @Override
            public void initialize(InputSplit split, TaskAttemptContext context) {
            }

            @Override
            public boolean nextKeyValue() throws IOException {
                left--;
                if (number == 1 && left == failing) {
                    throw new IOException("the countdown was held\nat " + left);
                }
                return left > 0;
            }

            @Override
            public LongWritable getCurrentKey() {
                return new LongWritable(number);
            }

            @Override
            public Text getCurrentValue() {
                return new Text(number + "-" + left);
            }

            @Override
            public float getProgress() {
                return 1f - (float) left / (from + 1);
            }

            @Override
            public void close() {
            }
        };
    }
}
