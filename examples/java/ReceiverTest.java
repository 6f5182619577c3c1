import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
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
      List<String> handled = new ArrayList<>();
      int status = send(receiver(vector, event -> handled.add(event.id())), vector).status();
      List<?> wanted = verdict.get("handled") == null ? List.of() : List.of(verdict.get("handled"));
      expect((String) vector.get("name"), List.of(status, handled), List.of(((Double) verdict.get("status")).intValue(), wanted));
    }
    for (Object each : (List<?>) file.get("sequences")) new Sequence((Map<?, ?>) each).run();
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
    TidingsReceiver.Answer pause = send(receiver, good);
    expect("after the pause asked for", List.of(pause.status(), pause.headers().get("Retry-After")), List.of(429, "30"));
    expect("and is handled", send(receiver, good).status(), 200);
    expect("once", send(receiver, good).headers().get("WWW-Authenticate"), "Bearer error=\"invalid_token\", error_description=\"replay\"");
    expect("another method", receiver.receive("GET", null, new byte[0]).status(), 405);
    String authorization = (String) good.get("authorization");
    expect("a long body", receiver.receive("POST", authorization, new byte[TidingsReceiver.MAX_BODY + 1]).status(), 413);

    Asked asked = new Asked();
    TidingsReceiver given = receiver(good, event -> {}).store(asked);
    expect("an event is handled, whether or not the store could record it", send(given, good).status(), 200);
    expect("a claim holds for a minute, what was handled for 96 hours", asked.times, List.of(60, 345_600));
    asked.isAway = true;
    expect("a store that is away loses nothing", send(given, good).status(), 503);

    CountDownLatch begun = new CountDownLatch(1);
    CountDownLatch done = new CountDownLatch(1);
    TidingsReceiver.Handler waiting =
        event -> {
          begun.countDown();
          done.await();
        };
    TidingsReceiver slow = receiver(good, waiting).timeout(Duration.ofMillis(100));
    expect("a slow handler is answered for", send(slow, good).body(), "{\"error\":\"timeout\"}");
    begun.await();
    slow.timeout(Duration.ofSeconds(14));
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
    now[0] += 20_000;
    String code = "";
    try {
      keys.get("stranger");
    } catch (Exception refused) {
      code = refused.getMessage();
    }
    expect("an empty set is no set", code, "keys_unavailable");
    expect("and replaces no good one", keys.get(kid) != null, true);

    for (long age : new long[] {301_000, 3_590_000}) {
      long[] clock = {0};
      TidingsReceiver.Keys aging = new TidingsReceiver.Keys(URI.create(keySets + "/published"));
      aging.nowMs = () -> clock[0];
      aging.get(kid);
      aging.url = URI.create(keySets + "/away");
      clock[0] = age;
      expect("old keys serve while the issuer is away", aging.get(kid) != null, true);
      aging.url = URI.create(keySets + "/rotated");
      clock[0] = age + 9_000;
      expect("and it is not asked again for ten seconds", aging.get(kid) != null, true);
      clock[0] = age + 10_000;
      List<Object> found = java.util.stream.IntStream.range(0, 20).parallel().mapToObj(n -> known(aging, kid)).toList();
      expect("a revoked key counts no longer after 300 seconds", found.contains(true), false);
    }
    try (java.net.ServerSocket silent = new java.net.ServerSocket(0)) {
      TidingsReceiver.Keys held = new TidingsReceiver.Keys(URI.create(keySets + "/published"));
      long[] clock = {0};
      held.nowMs = () -> clock[0];
      held.get(kid);
      held.url = URI.create("http://127.0.0.1:" + silent.getLocalPort());
      clock[0] = 20_000;
      Thread first = new Thread(() -> known(held, "stranger"));
      first.start();
      java.net.Socket fetch = silent.accept();
      boolean isTold = false;
      try {
        held.get("another");
      } catch (Exception refused) {
        isTold = true;
      }
      expect("of strangers that wait for a fetch there is one", List.of(isTold, first.isAlive()), List.of(true, true));
      expect("and a key that is known waits for none", List.of(known(held, kid), first.isAlive()), List.of(true, true));
      fetch.close();
    }

    boolean isRefused = false;
    try {
      receiver(good, event -> {}).webhookIds(List.of());
    } catch (IllegalArgumentException empty) {
      isRefused = true;
    }
    expect("an empty list of webhooks is refused", isRefused, true);

    System.out.println(passed + " passed, " + failed + " failed");
    System.exit(failed == 0 ? 0 : 1);
  }

  /** Notes for how long it is asked to keep something, and cannot record. */
  private static final class Asked implements TidingsReceiver.Store {
    final List<Integer> times = new java.util.ArrayList<>();
    boolean isAway;

    @Override
    public Claim claim(String key, int seconds) {
      if (isAway) throw new IllegalStateException("away");
      times.add(seconds);
      return new Claim(Status.CLAIMED, "owner");
    }

    @Override
    public boolean record(String key, String owner, int seconds) {
      times.add(seconds);
      throw new IllegalStateException("away");
    }

    @Override
    public boolean release(String key, String owner) {
      return false;
    }
  }

  /** Deliveries to one receiver, one after the other; some come from within the handler of the one before. */
  private static final class Sequence {
    final String name;
    final List<?> steps;
    final TidingsReceiver receiver;
    final Object[] handled;
    volatile int at;

    Sequence(Map<?, ?> sequence) {
      name = (String) sequence.get("name");
      steps = (List<?>) sequence.get("steps");
      handled = new Object[steps.size()];
      receiver = receiver(Map.of("keySet", "published"), this::handle).clock(() -> (Double) step(at).get("time"));
    }

    Map<?, ?> step(int nth) {
      return (Map<?, ?>) steps.get(nth);
    }

    boolean isDuring(int nth) {
      return nth < steps.size() && Boolean.TRUE.equals(step(nth).get("during"));
    }

    void handle(TidingsReceiver.Event event) {
      int nth = at;
      handled[nth] = event.id();
      if (isDuring(nth + 1)) take(nth + 1);
      if ("fails".equals(step(nth).get("handler"))) throw new IllegalStateException("no");
    }

    void take(int nth) {
      at = nth;
      int status = send(receiver, step(nth)).status();
      Map<?, ?> verdict = (Map<?, ?>) step(nth).get("verdict");
      expect(name, Arrays.asList(status, handled[nth]), Arrays.asList(((Double) verdict.get("status")).intValue(), verdict.get("handled")));
    }

    void run() {
      for (int nth = 0; nth < steps.size(); nth++) if (!isDuring(nth)) take(nth);
    }
  }

  private static Object known(TidingsReceiver.Keys keys, String kid) {
    try {
      return keys.get(kid) != null;
    } catch (Exception error) {
      return error.toString();
    }
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
    if (vector.get("spaces") instanceof Double spaces) {
      int length = body.length;
      body = Arrays.copyOf(body, length + spaces.intValue());
      Arrays.fill(body, length, body.length, (byte) ' ');
    }
    String method = vector.get("method") instanceof String given ? given : "POST";
    return receiver.receive(method, (String) vector.get("authorization"), body);
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
