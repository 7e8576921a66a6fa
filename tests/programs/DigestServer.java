import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HexFormat;
import java.util.Map;
import javax.security.auth.callback.Callback;
import javax.security.auth.callback.NameCallback;
import javax.security.auth.callback.PasswordCallback;
import javax.security.sasl.AuthorizeCallback;
import javax.security.sasl.RealmCallback;
import javax.security.sasl.Sasl;
import javax.security.sasl.SaslException;
import javax.security.sasl.SaslServer;

/**
 * The JDK's own DIGEST-MD5 server, driven by lines: made as Hadoop's servers make theirs (SaslRpcServer).
 *
 *   new QOP PASSWORD    a server; > the challenge
 *   respond HEX         the client's answer; > the server's
 *   wrap HEX            > what the server sends
 *   unwrap HEX          > what the server understood
 *
 * Each line is answered by one, `ok HEX` or `error TEXT`.
 */
public class DigestServer {
    private static SaslServer server;

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = lines.readLine()) != null; ) {
            try {
                byte[] answer = answer(line.split(" ", -1));
                System.out.println("ok " + (answer == null ? "" : HexFormat.of().formatHex(answer)));
            } catch (SaslException error) {
                System.out.println("error " + error.getMessage());
            }
            System.out.flush();
        }
    }

    private static byte[] answer(String[] words) throws SaslException {
        byte[] given = words[0].equals("new") ? null : HexFormat.of().parseHex(words[1]);
        return switch (words[0]) {
            case "new" -> begin(words[1], words[2]);
            case "respond" -> server.evaluateResponse(given);
            case "wrap" -> server.wrap(given, 0, given.length);
            case "unwrap" -> server.unwrap(given, 0, given.length);
            default -> throw new IllegalArgumentException(words[0]);
        };
    }

    private static byte[] begin(String qop, String password) throws SaslException {
        Map<String, String> wanted = Map.of(Sasl.QOP, qop, Sasl.SERVER_AUTH, "true");
        server = Sasl.createSaslServer("DIGEST-MD5", "", "default", wanted, callbacks -> {
            for (Callback callback : callbacks) {
                if (callback instanceof PasswordCallback asked) {
                    asked.setPassword(password.toCharArray());
                } else if (callback instanceof RealmCallback asked) {
                    asked.setText(asked.getDefaultText());
                } else if (callback instanceof AuthorizeCallback asked) {
                    asked.setAuthorized(asked.getAuthenticationID().equals(asked.getAuthorizationID()));
                    asked.setAuthorizedID(asked.getAuthorizationID());
                } else if (!(callback instanceof NameCallback)) {
                    throw new IllegalArgumentException(callback.toString());
                }
            }
        });
        return server.evaluateResponse(new byte[0]);
    }
}
