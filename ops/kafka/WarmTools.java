import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.kafka.common.utils.Exit;
import org.slf4j.LoggerFactory;

/**
 * Runs the main classes of Apache Kafka's command-line tools sequentially in one JVM.
 *
 * A request on standard input: a count, then that many strings (main class, arguments, and finally the tool's standard
 * input); a string is its length in bytes and UTF-8. The response on standard output: exit code, standard output and
 * standard error of the tool. Exits at the end of standard input.
 */
public final class WarmTools {
    /** Thrown instead of an exit of the process; an Error, since tools catch exceptions. */
    private static final class Ended extends Error {
        Ended(int code) {
            super("exit " + code, null, false, false);
        }
    }

    private static final long HOOK_MILLIS = 10_000;

    private static Integer code;
    private static final List<Runnable> hooks = new ArrayList<>();

    public static void main(String[] arguments) throws Exception {
        // slf4j warns once on standard error: before the first tool, not in its output.
        LoggerFactory.getLogger(WarmTools.class);
        DataInputStream in = new DataInputStream(System.in);
        DataOutputStream out = new DataOutputStream(System.out);
        Exit.setExitProcedure((status, message) -> end(status));
        Exit.setHaltProcedure((status, message) -> end(status));
        Exit.setShutdownHookAdder((name, hook) -> {
            synchronized (hooks) {
                hooks.add(hook);
            }
        });
        while (true) {
            int count;
            try {
                count = in.readInt();
            } catch (EOFException closed) {
                System.exit(0);
                return;
            }
            String[] strings = new String[count];
            for (int i = 0; i < count; i++) {
                strings[i] = new String(in.readNBytes(in.readInt()), StandardCharsets.UTF_8);
            }
            respond(out, strings);
        }
    }

    private static void respond(DataOutputStream out, String[] strings) throws IOException {
        ByteArrayOutputStream output = new ByteArrayOutputStream();
        ByteArrayOutputStream errors = new ByteArrayOutputStream();
        PrintStream before = System.out;
        PrintStream beforeErr = System.err;
        System.setIn(new ByteArrayInputStream(strings[strings.length - 1].getBytes(StandardCharsets.UTF_8)));
        PrintStream toOut = new PrintStream(output, true, StandardCharsets.UTF_8);
        PrintStream toErr = new PrintStream(errors, true, StandardCharsets.UTF_8);
        System.setOut(toOut);
        System.setErr(toErr);
        int status = run(strings[0], Arrays.copyOfRange(strings, 1, strings.length - 1));
        toOut.flush();
        toErr.flush();
        System.setOut(before);
        System.setErr(beforeErr);
        out.writeInt(status);
        for (ByteArrayOutputStream text : new ByteArrayOutputStream[] {output, errors}) {
            out.writeInt(text.size());
            text.writeTo(out);
        }
        out.flush();
    }

    private static int run(String name, String[] arguments) {
        synchronized (hooks) {
            code = null;
            hooks.clear();
        }
        boolean failed = false;
        try {
            Class<?> tool = Class.forName(name);
            reset(tool);
            tool.getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (InvocationTargetException thrown) {
            if (!(thrown.getCause() instanceof Ended)) {
                System.err.print("Exception in thread \"main\" ");
                thrown.getCause().printStackTrace();
                failed = true;
            }
        } catch (ReflectiveOperationException wrong) {
            System.err.println(wrong);
            failed = true;
        }
        runHooks();
        synchronized (hooks) {
            return code != null ? code : failed ? 1 : 0;
        }
    }

    /** Reset a tool's static counters (the console consumer's record count), which otherwise span several runs. */
    private static void reset(Class<?> tool) throws ReflectiveOperationException {
        if (tool.getName().endsWith(".ConsoleConsumer")) {
            Field count = tool.getDeclaredField("messageCount");
            count.setAccessible(true);
            count.setInt(null, 0);
        }
    }

    private static void runHooks() {
        List<Runnable> left;
        synchronized (hooks) {
            left = new ArrayList<>(hooks);
            hooks.clear();
        }
        for (Runnable hook : left) {
            Thread thread = new Thread(hook, "shutdown hook");
            thread.setDaemon(true);
            thread.start();
            try {
                thread.join(HOOK_MILLIS);
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    /** Ends a run. Some tools catch the Error: their later output is discarded, and the first exit code counts. */
    private static void end(int status) {
        synchronized (hooks) {
            if (code == null) {
                code = status;
                PrintStream nowhere = new PrintStream(OutputStream.nullOutputStream());
                System.setOut(nowhere);
                System.setErr(nowhere);
            }
        }
        throw new Ended(status);
    }
}
