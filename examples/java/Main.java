import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.util.concurrent.Executors;

/** javac *.java && java Main, and in another terminal: npx tidings webhooks create http://127.0.0.1:3000/hooks */
public final class Main {
  public static void main(String[] args) throws Exception {
    TidingsReceiver receiver =
        new TidingsReceiver(
            System.getenv().getOrDefault("ISSUER", "http://127.0.0.1:4100"),
            System.getenv().getOrDefault("AUDIENCE", "http://127.0.0.1:3000/hooks"),
            event -> System.out.println(event.eventType() + " " + event.payload()));
    int port = Integer.parseInt(System.getenv().getOrDefault("PORT", "3000"));
    HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", port), 0);
    server.setExecutor(Executors.newCachedThreadPool());
    server.createContext(
        "/hooks",
        exchange -> {
          byte[] body = TidingsReceiver.readBody(exchange.getRequestBody());
          String authorization = exchange.getRequestHeaders().getFirst("Authorization");
          TidingsReceiver.Answer answer = receiver.receive(exchange.getRequestMethod(), authorization, body);
          answer.headers().forEach(exchange.getResponseHeaders()::set);
          byte[] content = answer.body().getBytes();
          exchange.sendResponseHeaders(answer.status(), content.length == 0 ? -1 : content.length);
          exchange.getResponseBody().write(content);
          exchange.close();
        });
    server.start();
  }
}
