import java.io.BufferedReader;
import java.io.InputStreamReader;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.Path;

/** Writes the lines of its standard input to a new file, as programs write event files: each is flushed, and the file is open until the end. */
public class Flushing {
  public static void main(String[] args) throws Exception {
    Path path = new Path(args[0]);
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
    try (FSDataOutputStream file = path.getFileSystem(new Configuration()).create(path)) {
      for (String line = lines.readLine(); line != null; line = lines.readLine()) {
        file.write(line.getBytes("UTF-8"));
        file.hflush();
      }
    }
  }
}
