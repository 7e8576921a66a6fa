package trainmaster;

import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;

import org.apache.hadoop.io.BytesWritable;
import org.apache.hadoop.io.DataOutputBuffer;
import org.apache.hadoop.io.DoubleWritable;
import org.apache.hadoop.io.FloatWritable;
import org.apache.hadoop.io.IntWritable;
import org.apache.hadoop.io.LongWritable;
import org.apache.hadoop.io.NullWritable;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.io.Writable;

/**
 * Keys and values as bytes, and back.
 *
 * <p>A record is a line, `value` or `key TAB value`, or it is framed: each of its parts behind its length, four bytes,
 * the highest first. In a line everything is its text; in a frame Text and BytesWritable are what they hold, and any
 * other Writable what it writes.
 */
final class Values {
    final boolean framed;
    final boolean keyed;

    Values(String records) {
        framed = records.startsWith("framed");
        keyed = records.endsWith("key-value");
    }

    /** A record as the program reads it. */
    void encode(Object key, Object value, DataOutputBuffer into) throws IOException {
        if (framed) {
            if (keyed) {
                frame(key, into);
            }
            frame(value, into);
            return;
        }
        if (keyed && key != null && !(key instanceof NullWritable)) { // as TextOutputFormat has it
            text(key, into);
            into.write('\t');
        }
        text(value, into);
        into.write('\n');
    }

    private static void text(Object value, DataOutputBuffer into) throws IOException {
        if (value instanceof Text) {
            into.write(((Text) value).getBytes(), 0, ((Text) value).getLength());
        } else if (value != null && !(value instanceof NullWritable)) {
            into.write(value.toString().getBytes(StandardCharsets.UTF_8));
        }
    }

    private static void frame(Object value, DataOutputBuffer into) throws IOException {
        if (value instanceof BytesWritable) {
            BytesWritable bytes = (BytesWritable) value;
            into.writeInt(bytes.getLength());
            into.write(bytes.getBytes(), 0, bytes.getLength());
            return;
        }
        DataOutputBuffer content = new DataOutputBuffer();
        if (value instanceof Writable && !(value instanceof Text)) {
            ((Writable) value).write((DataOutputStream) content);
        } else if (value instanceof byte[]) {
            content.write((byte[]) value);
        } else {
            text(value, content);
        }
        into.writeInt(content.getLength());
        into.write(content.getData(), 0, content.getLength());
    }

    /** What a program printed as an object of the class that an OutputFormat is to be given. */
    static Object decode(byte[] data, int from, int to, Class<?> type) {
        if (type == Text.class) {
            Text text = new Text();
            text.set(data, from, to - from);
            return text;
        }
        if (type == BytesWritable.class) {
            BytesWritable bytes = new BytesWritable();
            bytes.set(data, from, to - from);
            return bytes;
        }
        if (type == NullWritable.class) {
            return NullWritable.get();
        }
        String text = new String(data, from, to - from, StandardCharsets.UTF_8);
        if (type == String.class) {
            return text;
        }
        if (type == LongWritable.class) {
            return new LongWritable(Long.parseLong(text.trim()));
        }
        if (type == IntWritable.class) {
            return new IntWritable(Integer.parseInt(text.trim()));
        }
        if (type == FloatWritable.class) {
            return new FloatWritable(Float.parseFloat(text.trim()));
        }
        if (type == DoubleWritable.class) {
            return new DoubleWritable(Double.parseDouble(text.trim()));
        }
        throw new IllegalArgumentException("what a program prints cannot be made a " + type.getName());
    }
}
