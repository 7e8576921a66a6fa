import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.FileOutputStream;
import java.io.OutputStream;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.security.Credentials;
import org.apache.hadoop.thirdparty.protobuf.DescriptorProtos.FileDescriptorSet;
import org.apache.hadoop.thirdparty.protobuf.Descriptors.FileDescriptor;

/**
 * What Hadoop's own classes say, for tests to hold ours against: `java -cp "JARS/*" HadoopSays.java COMMAND ARGUMENT...`
 *
 *   descriptors OUT CLASS...     the descriptors that classes made by protoc carry, as one FileDescriptorSet, dependencies first;
 *                                no jar holds the .proto files, so this is the only word on the numbers of fields
 *   constants CLASS              its public int constants, NAME VALUE a line
 *   configuration DIR KEY...     each key's value, trimmed and with ${} resolved, a line; "null" where there is none
 *   credentials IN WRITABLE PROTOBUF    reads a file of tokens and writes it again in both formats
 */
public class HadoopSays {
  public static void main(String[] args) throws Exception {
    String[] rest = Arrays.copyOfRange(args, 1, args.length);
    switch (args[0]) {
      case "descriptors": descriptors(rest); break;
      case "constants": constants(rest[0]); break;
      case "configuration": configuration(rest); break;
      case "credentials": credentials(Path.of(rest[0]), Path.of(rest[1]), Path.of(rest[2])); break;
      default: throw new IllegalArgumentException(args[0]);
    }
  }

  private static void descriptors(String[] args) throws Exception {
    Map<String, FileDescriptor> files = new LinkedHashMap<>();
    for (int i = 1; i < args.length; i++) {
      add(files, (FileDescriptor) Class.forName(args[i]).getMethod("getDescriptor").invoke(null));
    }
    FileDescriptorSet.Builder set = FileDescriptorSet.newBuilder();
    files.values().forEach(file -> set.addFile(file.toProto()));
    try (OutputStream out = new FileOutputStream(args[0])) {
      set.build().writeTo(out);
    }
  }

  private static void add(Map<String, FileDescriptor> files, FileDescriptor file) {
    if (!files.containsKey(file.getName())) {
      file.getDependencies().forEach(needed -> add(files, needed));
      files.put(file.getName(), file);
    }
  }

  private static void constants(String name) throws Exception {
    for (Field field : Class.forName(name).getFields()) {
      if (Modifier.isStatic(field.getModifiers()) && field.getType() == int.class) {
        System.out.println(field.getName() + " " + field.getInt(null));
      }
    }
  }

  private static void configuration(String[] args) {
    Configuration conf = new Configuration(false);
    for (String name : new String[] {"core-site.xml", "hdfs-site.xml", "yarn-site.xml"}) {
      Path path = Path.of(args[0], name);
      if (Files.exists(path)) {
        conf.addResource(new org.apache.hadoop.fs.Path(path.toUri()));
      }
    }
    for (int i = 1; i < args.length; i++) {
      System.out.println(conf.getTrimmed(args[i]));
    }
  }

  private static void credentials(Path in, Path writable, Path protobuf) throws Exception {
    Credentials credentials = new Credentials();
    try (DataInputStream data = new DataInputStream(Files.newInputStream(in))) {
      credentials.readTokenStorageStream(data);
    }
    try (DataOutputStream data = new DataOutputStream(Files.newOutputStream(writable))) {
      credentials.writeTokenStorageToStream(data, Credentials.SerializedFormat.WRITABLE);
    }
    try (DataOutputStream data = new DataOutputStream(Files.newOutputStream(protobuf))) {
      credentials.writeTokenStorageToStream(data, Credentials.SerializedFormat.PROTOBUF);
    }
  }
}
