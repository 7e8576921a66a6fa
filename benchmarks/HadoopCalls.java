import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.hadoop.yarn.api.ApplicationClientProtocol;
import org.apache.hadoop.yarn.api.protocolrecords.GetClusterMetricsRequest;
import org.apache.hadoop.yarn.client.ClientRMProxy;
import org.apache.hadoop.yarn.conf.YarnConfiguration;

/** Hadoop's own client: CALLS of getClusterMetrics by each number of threads in turn, on one connection; prints calls a second. */
public class HadoopCalls {
    public static void main(String[] arguments) throws Exception {
        int calls = Integer.parseInt(arguments[0]);
        ApplicationClientProtocol manager =
            ClientRMProxy.createRMProxy(new YarnConfiguration(), ApplicationClientProtocol.class);
        run(manager, 16, 2 * calls); // the JVM compiles what it runs often
        for (int at = 1; at < arguments.length; at++) {
            int threads = Integer.parseInt(arguments[at]);
            System.out.println(run(manager, threads, calls));
        }
        System.exit(0);
    }

    private static double run(ApplicationClientProtocol manager, int threads, int calls) throws Exception {
        AtomicInteger left = new AtomicInteger(calls);
        List<Thread> started = new ArrayList<>();
        long begin = System.nanoTime();
        for (int number = 0; number < threads; number++) {
            Thread thread = new Thread(() -> {
                while (left.getAndDecrement() > 0) {
                    try {
                        manager.getClusterMetrics(GetClusterMetricsRequest.newInstance());
                    } catch (Exception error) {
                        throw new IllegalStateException(error);
                    }
                }
            });
            thread.start();
            started.add(thread);
        }
        for (Thread thread : started) {
            thread.join();
        }
        return calls / ((System.nanoTime() - begin) / 1e9);
    }
}
