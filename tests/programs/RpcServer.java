import java.io.BufferedReader;
import java.io.DataInput;
import java.io.DataOutput;
import java.io.IOException;
import java.io.InputStreamReader;
import java.util.HexFormat;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.ipc.ProtobufRpcEngine2;
import org.apache.hadoop.ipc.RPC;
import org.apache.hadoop.ipc.proto.GenericRefreshProtocolProtos.GenericRefreshProtocolService;
import org.apache.hadoop.ipc.proto.GenericRefreshProtocolProtos.GenericRefreshRequestProto;
import org.apache.hadoop.ipc.proto.GenericRefreshProtocolProtos.GenericRefreshResponseCollectionProto;
import org.apache.hadoop.ipc.proto.GenericRefreshProtocolProtos.GenericRefreshResponseProto;
import org.apache.hadoop.ipc.protocolPB.GenericRefreshProtocolPB;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.security.token.SecretManager;
import org.apache.hadoop.security.token.TokenIdentifier;
import org.apache.hadoop.thirdparty.protobuf.BlockingService;
import org.apache.hadoop.thirdparty.protobuf.RpcController;
import org.apache.hadoop.thirdparty.protobuf.ServiceException;

/**
 * Hadoop's own RPC servers with one method that does as it is told, so that a test can have what no cluster does on demand.
 *
 * Lines: `start NAME PORT AUTHENTICATION PROTECTION` (port 0: any; > the port), `stop NAME`, `token USER` (> identifier and
 * password). The method `refresh` takes a verb as identifier, and arguments:
 *   echo TEXT...        the texts, with the caller's name as sender
 *   wait KEY            the answer comes after `release KEY`
 *   release KEY
 *   throw CLASS TEXT    that exception
 *   once CLASS KEY      that exception on the first call with this key
 *   count KEY           how often `once` was called with it
 */
public class RpcServer implements GenericRefreshProtocolService.BlockingInterface {
    private static final Map<String, CountDownLatch> LATCHES = new ConcurrentHashMap<>();
    private static final Map<String, AtomicInteger> COUNTS = new ConcurrentHashMap<>();
    private static final Secrets SECRETS = new Secrets();

    public static void main(String[] arguments) throws Exception {
        Map<String, RPC.Server> servers = new ConcurrentHashMap<>();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = lines.readLine()) != null; ) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "start" -> {
                    RPC.Server server = server(Integer.parseInt(words[2]), words[3], words[4]);
                    servers.put(words[1], server);
                    System.out.println(server.getPort());
                }
                case "stop" -> {
                    RPC.Server server = servers.remove(words[1]);
                    server.stop();
                    server.join();
                    System.out.println("stopped");
                }
                case "token" -> {
                    Id id = new Id();
                    id.user = words[1];
                    String identifier = HexFormat.of().formatHex(id.getBytes());
                    System.out.println(identifier + " " + HexFormat.of().formatHex(SECRETS.createPassword(id)));
                }
                default -> throw new IllegalArgumentException(line);
            }
            System.out.flush();
        }
        System.exit(0);
    }

    private static RPC.Server server(int port, String authentication, String protection) throws IOException {
        Configuration configuration = new Configuration();
        configuration.set("hadoop.security.authentication", authentication);
        configuration.set("hadoop.rpc.protection", protection);
        configuration.setInt("ipc.maximum.response.length", 96 << 20);
        RPC.setProtocolEngine(configuration, GenericRefreshProtocolPB.class, ProtobufRpcEngine2.class);
        BlockingService service = GenericRefreshProtocolService.newReflectiveBlockingService(new RpcServer());
        RPC.Server server = new RPC.Builder(configuration).setProtocol(GenericRefreshProtocolPB.class)
            .setInstance(service).setBindAddress("127.0.0.1").setPort(port).setNumHandlers(8)
            .setSecretManager(SECRETS).build();
        server.start();
        return server;
    }

    @Override
    public GenericRefreshResponseCollectionProto refresh(RpcController controller, GenericRefreshRequestProto asked)
            throws ServiceException {
        try {
            String answer = answer(asked.getIdentifier(), asked.getArgsList().toArray(new String[0]));
            String user = UserGroupInformation.getCurrentUser().getShortUserName();
            return GenericRefreshResponseCollectionProto.newBuilder().addResponses(
                GenericRefreshResponseProto.newBuilder().setUserMessage(answer).setSenderName(user)).build();
        } catch (Exception error) {
            throw new ServiceException(error);
        }
    }

    private static String answer(String verb, String[] given) throws Exception {
        switch (verb) {
            case "echo":
                return String.join(" ", given);
            case "repeat":
                return given[0].repeat(Integer.parseInt(given[1]));
            case "wait":
                await(LATCHES.computeIfAbsent(given[0], key -> new CountDownLatch(1)));
                return given[0];
            case "release":
                LATCHES.computeIfAbsent(given[0], key -> new CountDownLatch(1)).countDown();
                return "";
            case "throw":
                throw exception(given[0], given[1]);
            case "once":
                if (COUNTS.computeIfAbsent(given[1], key -> new AtomicInteger()).incrementAndGet() == 1) {
                    throw exception(given[0], "the first time");
                }
                return "";
            case "count":
                return COUNTS.getOrDefault(given[0], new AtomicInteger()).toString();
            default:
                throw new IllegalArgumentException(verb);
        }
    }

    /** A server that is stopped interrupts its calls; a test wants them to see only that it is gone. */
    private static void await(CountDownLatch latch) {
        while (true) {
            try {
                latch.await();
                return;
            } catch (InterruptedException again) {
                continue;
            }
        }
    }

    private static Exception exception(String name, String text) throws Exception {
        return (Exception) Class.forName(name).getConstructor(String.class).newInstance(text);
    }

    /** A token's identifier: a user's name. */
    public static class Id extends TokenIdentifier {
        String user = "";

        @Override
        public Text getKind() {
            return new Text("TEST");
        }

        @Override
        public UserGroupInformation getUser() {
            return UserGroupInformation.createRemoteUser(user);
        }

        @Override
        public void write(DataOutput out) throws IOException {
            Text.writeString(out, user);
        }

        @Override
        public void readFields(DataInput in) throws IOException {
            user = Text.readString(in);
        }
    }

    private static class Secrets extends SecretManager<Id> {
        @Override
        public byte[] createPassword(Id id) {
            return ("password of " + id.user).getBytes();
        }

        @Override
        public byte[] retrievePassword(Id id) throws InvalidToken {
            if (id.user.equals("expired")) {
                throw new InvalidToken("token of " + id.user + " is expired");
            }
            return createPassword(id);
        }

        @Override
        public Id createIdentifier() {
            return new Id();
        }
    }
}
