package trainmaster;

import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.File;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.util.zip.GZIPInputStream;
import java.util.zip.GZIPOutputStream;

/**
 * The records of splits on the task's disk, packed, a file a split, as long as all of them are below the limit. What cannot be
 * kept is read again from where it came.
 */
final class Cache {
    private static final int BUFFER = 64 * 1024;
    private final String folder;
    private final long limit;
    private long kept;
    private boolean full;

    interface Sink {
        boolean give(byte[] record) throws IOException;
    }

    Cache(String folder, long limit) {
        this.folder = folder;
        this.limit = limit;
    }

    /** Give the records of a split, until they are not wanted any more; whether it is there. */
    boolean replay(int split, Sink sink) throws IOException {
        File file = new File(folder, split + ".gz");
        if (!file.exists()) {
            return false;
        }
        try (DataInputStream from = new DataInputStream(
                new BufferedInputStream(new GZIPInputStream(new FileInputStream(file), BUFFER), BUFFER))) {
            while (true) {
                byte[] record;
                try {
                    record = new byte[from.readInt()];
                } catch (EOFException end) {
                    return true;
                }
                from.readFully(record);
                if (!sink.give(record)) {
                    return true;
                }
            }
        }
    }

    /** Where a split's records can be kept; null where there is no room. */
    Draft draft(int split) throws IOException {
        return full || kept >= limit ? null : new Draft(new File(folder, split + ".gz"));
    }

    final class Draft {
        private final File file;
        private final File draft;
        private final DataOutputStream to;
        private int count;

        Draft(File file) throws IOException {
            this.file = file;
            draft = new File(file.getPath() + ".part");
            to = new DataOutputStream(new BufferedOutputStream(new GZIPOutputStream(new FileOutputStream(draft), BUFFER) {
                {
                    def.setLevel(1);
                }
            }, BUFFER));
        }

        /** Whether it is kept still. */
        boolean add(byte[] record) {
            try {
                to.writeInt(record.length);
                to.write(record);
                if ((++count & 1023) != 0 || kept + draft.length() <= limit) {
                    return true;
                }
            } catch (IOException error) {
                System.err.println("the cache of the first epoch cannot grow: " + error);
            }
            full = true;
            end(false);
            return false;
        }

        void end(boolean whole) {
            try {
                to.close();
            } catch (IOException error) {
                whole = false;
            }
            long size = draft.length();
            if (whole && kept + size <= limit && draft.renameTo(file)) {
                kept += size;
            } else {
                draft.delete();
            }
        }
    }
}
