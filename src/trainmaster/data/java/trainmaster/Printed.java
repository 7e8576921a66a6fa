package trainmaster;

import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.util.Arrays;

/** What a program prints, as lines or frames; the parts of one record follow each other in `data`. */
final class Printed {
    byte[] data = new byte[64 * 1024];
    int length;
    private final InputStream from;
    private final byte[] ahead = new byte[256 * 1024];
    private int at;
    private int end;

    Printed(InputStream from) {
        this.from = from;
    }

    /** Read a line without its end; whether there was one. */
    boolean line() throws IOException {
        boolean some = false;
        while (at < end || fill()) {
            some = true;
            int found = at;
            while (found < end && ahead[found] != '\n') {
                found++;
            }
            take(found - at);
            if (at < end) {
                at++;
                return true;
            }
        }
        return some;
    }

    /** Read a frame; whether there was one. */
    boolean frame() throws IOException {
        if (at == end && !fill()) {
            return false;
        }
        int size = 0;
        for (int i = 0; i < 4; i++) {
            need();
            size = size << 8 | ahead[at++] & 0xff;
        }
        if (size < 0) {
            throw new IOException("a frame of " + size + " bytes: the program prints no frames");
        }
        while (size > 0) {
            need();
            int part = Math.min(size, end - at);
            take(part);
            size -= part;
        }
        return true;
    }

    private void take(int count) {
        if (data.length - length < count) {
            data = Arrays.copyOf(data, Math.max(2 * data.length, length + count));
        }
        System.arraycopy(ahead, at, data, length, count);
        length += count;
        at += count;
    }

    private void need() throws IOException {
        if (at == end && !fill()) {
            throw new EOFException("the last frame that the program printed is cut off");
        }
    }

    private boolean fill() throws IOException {
        at = 0;
        end = Math.max(from.read(ahead), 0);
        return end > 0;
    }
}
