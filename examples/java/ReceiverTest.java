import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.CountDownLatch;

/** java ReceiverTest VECTORS KEY_SETS_URL: runs every vector, whose key sets a server answers at KEY_SETS_URL/NAME. */
public final class ReceiverTest {
  private static int passed, failed;
  private static Map<String, Object> file;
  private static String keySets;

  public static void main(String[] args) throws Exception {
    file = TidingsReceiver.Json.object(Files.readAllBytes(Path.of(args[0])), false);
    keySets = args[1];
    List<?> vectors = (List<?>) file.get("vectors");
    for (Object each : vectors) {
      Map<?, ?> vector = (Map<?, ?>) each;
      Map<?, ?> verdict = (Map<?, ?>) vector.get("verdict");
      expect((String) vector.get("name"), send(receiver(vector, event -> {}), vector).status(), ((Double) verdict.get("status")).intValue());
    }
    Map<?, ?> good = (Map<?, ?>) vectors.get(0);

    int[] calls = {0};
    TidingsReceiver receiver =
        receiver(
            good,
            event -> {
              expect("the event has an id of its own", event.id().equals(event.eventId()), false);
              switch (++calls[0]) {
                case 1 -> throw new StackOverflowError();
                case 2 -> throw new TidingsReceiver.RetryLater(30);
                default -> {}
              }
            });
    expect("an event that was not handled comes again", send(receiver, good).status(), 500);
    expect("after the pause asked for", send(receiver, good).headers().get("Retry-After"), "30");
    expect("and is handled", send(receiver, good).status(), 200);
    expect("once", send(receiver, good).headers().get("WWW-Authenticate"), "Bearer error=\"invalid_token\", error_description=\"replay\"");
    expect("another method", receiver.receive("GET", null, new byte[0]).status(), 405);
    String authorization = (String) good.get("authorization");
    expect("a long body", receiver.receive("POST", authorization, new byte[TidingsReceiver.MAX_BODY + 1]).status(), 413);

    CountDownLatch done = new CountDownLatch(1);
    TidingsReceiver slow = receiver(good, event -> done.await()).timeout(Duration.ofMillis(100));
    expect("a slow handler is answered for", send(slow, good).body(), "{\"error\":\"timeout\"}");
    expect("and not run twice", send(slow, good).body(), "{\"error\":\"in_progress\"}");
    done.countDown();
    for (long end = System.nanoTime() + 10_000_000_000L; !send(slow, good).body().contains("replay"); Thread.sleep(5)) {
      if (System.nanoTime() > end) throw new IllegalStateException("it is not recorded");
    }

    long[] now = {0};
    TidingsReceiver.MemoryStore store = new TidingsReceiver.MemoryStore(2, () -> now[0]);
    String late = store.claim("a", 60).owner();
    now[0] = 60_000;
    String owner = store.claim("a", 60).owner();
    expect("claims are fenced", List.of(store.release("a", late), store.record("a", late, 60), store.record("a", owner, 600)), List.of(false, false, true));

    TidingsReceiver.Keys keys = new TidingsReceiver.Keys(URI.create(keySets + "/published"));
    keys.nowMs = () -> now[0];
    Map<?, ?> set = (Map<?, ?>) ((Map<?, ?>) file.get("keySets")).get("published");
    String kid = (String) ((Map<?, ?>) ((List<?>) ((Map<?, ?>) set.get("body")).get("keys")).get(0)).get("kid");
    expect("a key is found", keys.get(kid) != null, true);
    keys.url = URI.create(keySets + "/empty");
    now[0] += 3_000_000;
    String code = "";
    try {
      keys.get("stranger");
    } catch (Exception refused) {
      code = refused.getMessage();
    }
    expect("an empty set is no set", code, "keys_unavailable");
    expect("and replaces no good one", keys.get(kid) != null, true);

    System.out.println(passed + " passed, " + failed + " failed");
    System.exit(failed == 0 ? 0 : 1);
  }

  private static TidingsReceiver receiver(Map<?, ?> vector, TidingsReceiver.Handler handler) {
    TidingsReceiver receiver =
        new TidingsReceiver((String) file.get("issuer"), (String) file.get("audience"), handler, keySets + "/" + vector.get("keySet"));
    receiver.clock(() -> (Double) vector.get("time"));
    if (vector.get("webhookIds") instanceof List<?> ids) receiver.webhookIds(ids.stream().map(String.class::cast).toList());
    return receiver;
  }

  private static TidingsReceiver.Answer send(TidingsReceiver receiver, Map<?, ?> vector) {
    byte[] body =
        vector.get("body") instanceof String text
            ? text.getBytes(java.nio.charset.StandardCharsets.UTF_8)
            : Base64.getDecoder().decode((String) vector.get("bodyBase64"));
    return receiver.receive("POST", (String) vector.get("authorization"), body);
  }

  private static void expect(String name, Object found, Object expected) {
    if (Objects.equals(found, expected)) {
      passed++;
      return;
    }
    failed++;
    System.out.println(name + ": expected " + expected + ", found " + found);
  }
}
