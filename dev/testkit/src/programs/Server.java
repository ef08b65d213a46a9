import java.io.InputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.ByteBuffer;

/** GET /grow fills the cache, GET / answers. */
class Server {
    public static void main(String[] args) throws Exception {
        var cache = new ByteBuffer[1000];
        var loopback = InetAddress.getByName("127.0.0.1");
        try (var server = new ServerSocket(Integer.parseInt(args[0]), 50, loopback)) {
            while (true) {
                try (var client = server.accept()) {
                    var request = head(client.getInputStream());
                    if (request.startsWith("GET /grow")) {
                        for (int i = 0; i < cache.length; i++) {
                            cache[i] = ByteBuffer.allocateDirect(4000);
                        }
                    }
                    client.getOutputStream()
                            .write("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello\n".getBytes());
                }
            }
        }
    }

    /** What comes before the empty line. */
    private static String head(InputStream input) throws Exception {
        var head = new StringBuilder();
        while (head.indexOf("\r\n\r\n") < 0) {
            int next = input.read();
            if (next < 0) {
                break;
            }
            head.append((char) next);
        }
        return head.toString();
    }
}
