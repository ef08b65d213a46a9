/** Sends its arguments as one message. */
public class MemoryProfile {
    static {
        System.load(System.getProperty("memprof"));
    }

    static native String send(String message);

    public static void main(String[] words) {
        try {
            System.out.println(send(String.join(" ", words)));
        } catch (RuntimeException error) {
            System.err.println(error.getMessage());
            System.exit(1);
        }
    }
}
