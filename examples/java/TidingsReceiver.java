import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.math.BigInteger;
import java.net.HttpURLConnection;
import java.net.URI;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.MessageDigest;
import java.security.PublicKey;
import java.security.Signature;
import java.security.spec.X509EncodedKeySpec;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Supplier;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Receives deliveries of Tidings: verifies them, handles each once, and answers in time. One file to copy; Java 17 or newer, no library.
 *
 * <p>{@code receive} is given the method, the Authorization header and the body's bytes, and returns the answer, whatever serves HTTP: a
 * servlet, Spring ({@code @RequestBody byte[]}), or the JDK's own server, as in Main.java. docs/receivers/README.md
 * explains what it does, and why.
 */
public final class TidingsReceiver {
  /** Far more than any delivery: read at most one byte more, and pass on what you have read. */
  public static final int MAX_BODY = 1 << 20;

  private static final int MAX_TOKEN = 16_384;
  private static final int LIFETIME_SECONDS = 300;
  private static final int TOLERANCE_SECONDS = 60;
  private static final int CLAIM_SECONDS = 60;
  private static final int HANDLED_SECONDS = 96 * 3600;

  /** The content of a delivery. {@code eventId} is the delivery's id, {@code id} the event's own: the same for all redeliveries. */
  public record Event(
      String id, String webhookId, String eventId, String eventType, String eventTime, Map<String, Object> payload) {}

  public record Answer(int status, Map<String, String> headers, String body) {}

  /** If it returns, the event is handled; if it throws, the event comes again. */
  public interface Handler {
    void handle(Event event) throws Exception;
  }

  /** Thrown by a handler: the delivery is answered 429, and the webhook receives nothing for that many seconds. */
  public static final class RetryLater extends Exception {
    final long seconds;

    public RetryLater(long seconds) {
      super("again in " + seconds + " s");
      if (seconds < 0 || seconds > 86_400) {
        throw new IllegalArgumentException(seconds + " is no number of seconds from 0 to 86400");
      }
      this.seconds = seconds;
    }
  }

  /**
   * Remembers what was handled. A claim has an owner: only the owner may record or release it, and may record an expired claim that
   * nobody else has taken. The processes of one endpoint share a store.
   */
  public interface Store {
    enum Status { CLAIMED, IN_PROGRESS, HANDLED }

    record Claim(Status status, String owner) {}

    Claim claim(String key, int seconds) throws Exception;

    boolean record(String key, String owner, int seconds) throws Exception;

    boolean release(String key, String owner) throws Exception;
  }

  private static final class Refused extends Exception {
    final String code;
    final Long retryAfter;

    Refused(String code, Long retryAfter, Throwable cause) {
      super(code, cause);
      this.code = code;
      this.retryAfter = retryAfter;
    }

    Refused(String code) {
      this(code, null, null);
    }

    int status() {
      return switch (code) {
        case "method" -> 405;
        case "body_too_large" -> 413;
        case "retry_later" -> 429;
        case "body", "handler_failed" -> 500;
        case "in_progress", "timeout", "keys_unavailable", "replay_store_unavailable" -> 503;
        default -> 401;
      };
    }

    Answer answer() {
      Map<String, String> headers = new HashMap<>(Map.of("Content-Type", "application/json"));
      if (code.equals("token_missing")) {
        headers.put("WWW-Authenticate", "Bearer");
      } else if (status() == 401) {
        headers.put("WWW-Authenticate", "Bearer error=\"invalid_token\", error_description=\"" + code + "\"");
      }
      if (code.equals("method")) headers.put("Allow", "POST");
      if (code.equals("body_too_large")) headers.put("Connection", "close");
      if (retryAfter != null) headers.put("Retry-After", retryAfter.toString());
      return new Answer(status(), headers, "{\"error\":\"" + code + "\"}");
    }
  }

  private static final System.Logger LOG = System.getLogger("tidings.receiver");

  private final String issuer;
  private final String audience;
  private final Handler handler;
  private final Keys keys;
  private List<String> webhookIds = List.of();
  private Store store = new MemoryStore(100_000, System::currentTimeMillis);
  private Supplier<Double> nowSeconds = () -> System.currentTimeMillis() / 1000.0;
  private Duration timeout = Duration.ofSeconds(14);
  private final ExecutorService workers =
      Executors.newCachedThreadPool(
          work -> {
            Thread thread = new Thread(work, "tidings-receiver");
            thread.setDaemon(true);
            return thread;
          });

  public TidingsReceiver(String issuer, String audience, Handler handler) {
    this(issuer, audience, handler, issuer.replaceAll("/$", "") + "/.well-known/jwks.json");
  }

  /** @param keysUrl where the issuer publishes its keys, if not at its /.well-known/jwks.json */
  public TidingsReceiver(String issuer, String audience, Handler handler, String keysUrl) {
    for (String url : List.of(issuer, audience, keysUrl)) {
      if (!url.matches("https?://.+")) throw new IllegalArgumentException(url + " should be a URL");
    }
    this.issuer = issuer;
    this.audience = audience;
    this.handler = java.util.Objects.requireNonNull(handler);
    this.keys = new Keys(URI.create(keysUrl));
  }

  /** The ids of your own webhooks: others may register one for your URL. Not checked unless given. */
  public TidingsReceiver webhookIds(List<String> ids) {
    if (ids.isEmpty()) throw new IllegalArgumentException("An empty list of webhooks would let in none; leave it out to let in all");
    webhookIds = List.copyOf(ids);
    return this;
  }

  public TidingsReceiver store(Store shared) {
    store = shared;
    return this;
  }

  public TidingsReceiver clock(Supplier<Double> epochSeconds) {
    nowSeconds = epochSeconds;
    return this;
  }

  /** The time until a 503: the service waits 15 s. */
  public TidingsReceiver timeout(Duration duration) {
    timeout = duration;
    return this;
  }

  private static final Pattern BEARER = Pattern.compile("Bearer +(\\S.*)", Pattern.CASE_INSENSITIVE | Pattern.DOTALL);

  /** The answer. Never throws. */
  public Answer receive(String method, String authorization, byte[] body) {
    long deadline = System.nanoTime() + timeout.toNanos();
    try {
      if (!"POST".equals(method)) throw new Refused("method");
      Matcher bearer = BEARER.matcher(authorization == null ? "" : authorization);
      if (!bearer.matches()) throw new Refused("token_missing");
      if (body.length > MAX_BODY) throw new Refused("body_too_large");
      Event event = verify(bearer.group(1).stripTrailing(), body);
      handleInTime(event, deadline);
      return new Answer(200, Map.of(), "");
    } catch (Refused refused) {
      // What strangers send fills no log; a failed fetch of the keys was logged where it failed.
      boolean isOwn = refused.getCause() != null && !refused.code.equals("keys_unavailable");
      LOG.log(isOwn ? System.Logger.Level.WARNING : System.Logger.Level.DEBUG, refused.code, refused.getCause());
      return refused.answer();
    } catch (Throwable error) {
      LOG.log(System.Logger.Level.ERROR, "The receiver failed", error);
      return new Refused("handler_failed").answer();
    }
  }

  /** Reads a body for {@code receive}: up to its limit and somewhat more, so that the client reads the answer. */
  public static byte[] readBody(InputStream from) throws IOException {
    byte[] body = from.readNBytes(MAX_BODY + 1);
    if (body.length > MAX_BODY) for (int i = 0; i < 8 && from.readNBytes(MAX_BODY).length > 0; i++) {}
    return body;
  }

  // The checks, in this order. Nothing in the token is trusted before its signature is verified.

  private Event verify(String token, byte[] body) throws Refused {
    String[] parts = token.split("\\.", -1);
    if (token.length() > MAX_TOKEN || parts.length != 3 || !parts[2].matches("[A-Za-z0-9_-]*")) throw new Refused("format");
    Map<String, Object> header = Json.object(fromBase64url(parts[0]), true);
    Map<String, Object> claims = Json.object(fromBase64url(parts[1]), true);
    if (header == null || claims == null || header.containsKey("crit") || header.containsKey("b64")) throw new Refused("format");
    Object typ = header.getOrDefault("typ", "JWT");
    if (!(typ instanceof String type) || !type.matches("(?i)(application/)?jwt")) throw new Refused("format");
    if (!"EdDSA".equals(header.get("alg"))) throw new Refused("algorithm");
    PublicKey key = keys.get(header.get("kid") instanceof String kid ? kid : "");
    if (key == null) throw new Refused("key");
    byte[] signature = fromBase64url(parts[2]);
    if (signature == null || signature.length != 64 || !isSignature(key, parts[0] + "." + parts[1], signature)) {
      throw new Refused("signature");
    }
    return checkClaims(claims, body);
  }

  private static boolean isSignature(PublicKey key, String text, byte[] signature) {
    try {
      Signature verifier = Signature.getInstance("Ed25519");
      verifier.initVerify(key);
      verifier.update(text.getBytes(StandardCharsets.US_ASCII));
      return verifier.verify(signature);
    } catch (GeneralSecurityException | IllegalArgumentException error) {
      return false;
    }
  }

  private Event checkClaims(Map<String, Object> claims, byte[] body) throws Refused {
    double now = nowSeconds.get();
    if (!issuer.equals(claims.get("iss"))) throw new Refused("issuer");
    if (!audience.equals(claims.get("aud"))) throw new Refused("audience");
    Double exp = timeIn(claims, "exp");
    Double iat = timeIn(claims, "iat");
    if (exp == null || now >= exp || iat != null && (exp <= iat || exp - iat > LIFETIME_SECONDS)) throw new Refused("expiry");
    Map<String, Object> said = Json.object(body, false);
    if (!(claims.get("jti") instanceof String jti) || jti.isEmpty() || said == null || !jti.equals(said.get("eventId"))) {
      throw new Refused("jti");
    }
    // A token of an older server has no such claim.
    if (claims.containsKey("body_sha256") && !digestOf(body).equals(claims.get("body_sha256"))) throw new Refused("body_digest");
    if (!webhookIds.isEmpty() && !(said.get("webhookId") instanceof String id && webhookIds.contains(id))) {
      throw new Refused("webhook");
    }
    Double nbf = claims.containsKey("nbf") ? timeIn(claims, "nbf") : iat;
    if (iat == null || nbf == null || Math.max(iat, nbf) > now + TOLERANCE_SECONDS) throw new Refused("issued_at");
    // Signed, but unknown to this receiver: 5XX, so that nothing is lost.
    if (!(said.get("webhookId") instanceof String webhookId
        && said.get("eventType") instanceof String eventType
        && said.get("eventTime") instanceof String eventTime
        && said.get("payload") instanceof Map<?, ?> payload)) throw new Refused("body");
    String id = claims.get("sub") instanceof String sub && !sub.isEmpty() ? sub : jti;
    @SuppressWarnings("unchecked")
    Map<String, Object> members = (Map<String, Object>) payload;
    return new Event(id, webhookId, jti, eventType, eventTime, members);
  }

  private static String digestOf(byte[] body) {
    try {
      return Base64.getUrlEncoder().withoutPadding().encodeToString(MessageDigest.getInstance("SHA-256").digest(body));
    } catch (GeneralSecurityException error) {
      throw new IllegalStateException(error);
    }
  }

  /** NumericDate, RFC 7519 section 2. */
  private static Double timeIn(Map<String, Object> claims, String name) {
    return claims.get(name) instanceof Double value && Math.abs(value) <= 8.64e12 ? value : null;
  }

  /** The bytes of canonical base64url; null otherwise. */
  private static byte[] fromBase64url(String text) {
    try {
      byte[] raw = Base64.getUrlDecoder().decode(text);
      return Base64.getUrlEncoder().withoutPadding().encodeToString(raw).equals(text) ? raw : null;
    } catch (IllegalArgumentException error) {
      return null;
    }
  }

  /** If a handler is too slow, the receiver answers 503; the handler still counts if it succeeds later. */
  private void handleInTime(Event event, long deadline) throws Refused, InterruptedException {
    Future<?> work =
        workers.submit(
            () -> {
              handleOnce(event);
              return null;
            });
    try {
      work.get(Math.max(0, deadline - System.nanoTime()), TimeUnit.NANOSECONDS);
    } catch (TimeoutException late) {
      throw new Refused("timeout");
    } catch (ExecutionException failed) {
      throw failed.getCause() instanceof Refused refused ? refused : new Refused("handler_failed", null, failed.getCause());
    }
  }

  private void handleOnce(Event event) throws Refused {
    String key = event.eventId();
    Store.Claim claim;
    try {
      claim = store.claim(key, CLAIM_SECONDS);
    } catch (Exception error) {
      throw new Refused("replay_store_unavailable", null, error);
    }
    if (claim.status() != Store.Status.CLAIMED) {
      throw new Refused(claim.status() == Store.Status.HANDLED ? "replay" : "in_progress");
    }
    try {
      if (!event.eventType().equals("ping")) handler.handle(event);
    } catch (Throwable error) {
      settle(() -> store.release(key, claim.owner()));
      if (error instanceof RetryLater later) throw new Refused("retry_later", later.seconds, null);
      throw new Refused("handler_failed", null, error);
    }
    settle(() -> store.record(key, claim.owner(), HANDLED_SECONDS));
  }

  private interface Change {
    boolean make() throws Exception;
  }

  /** The outcome of the event stands, even if the store could not record it. */
  private static void settle(Change change) {
    try {
      change.make();
    } catch (Exception error) {
      LOG.log(System.Logger.Level.ERROR, "The replay store could not be told", error);
    }
  }

  /**
   * The issuer's keys: fetched when first needed, in the background before they expire, and for an unknown kid. A known key waits for
   * a fetch only when the keys are older than 300 s: it may have been revoked. If that fails, it serves for an hour. At most one
   * request is under way.
   */
  static final class Keys {
    private static final long REFRESH_AFTER = 240_000, FRESH = 300_000, STALE = 3_600_000, LEAST_BETWEEN = 10_000;
    private static final int TIMEOUT = 5_000;
    private static final int MAX_BYTES = 256 * 1024;
    /** What comes before the 32 bytes of a key in its DER form (RFC 8410). */
    private static final byte[] SPKI = HexFormat.of().parseHex("302a300506032b6570032100");

    URI url;
    Supplier<Long> nowMs = () -> System.nanoTime() / 1_000_000;
    private volatile Map<String, PublicKey> known = Map.of();
    private Long fetchedAt, failedAt;
    private CompletableFuture<Void> underWay;

    Keys(URI url) {
      this.url = url;
    }

    /** Null if the issuer has no such key. */
    PublicKey get(String kid) throws Refused {
      CompletableFuture<Void> fetch;
      boolean mayServe;
      synchronized (this) {
        CompletableFuture<Void> before = underWay;
        long age = fetchedAt == null ? Long.MAX_VALUE : nowMs.get() - fetchedAt;
        boolean isKnown = known.containsKey(kid);
        if (age < (isKnown ? REFRESH_AFTER : LEAST_BETWEEN)) return known.get(kid);
        fetch = refresh();
        if (isKnown && age < FRESH) return known.get(kid);
        // One stranger may wait, and not all threads.
        if (!isKnown && !known.isEmpty() && fetch == before) throw new Refused("keys_unavailable");
        mayServe = isKnown && age < STALE;
      }
      try {
        fetch.get(TIMEOUT, TimeUnit.MILLISECONDS);
      } catch (Exception error) {
        if (!mayServe) throw new Refused("keys_unavailable", null, error);
      }
      return known.get(kid);
    }

    private CompletableFuture<Void> refresh() {
      if (underWay != null && !underWay.isDone()) return underWay;
      if (failedAt != null && nowMs.get() - failedAt < LEAST_BETWEEN) return underWay;
      CompletableFuture<Void> fetch = underWay = new CompletableFuture<>();
      long startedAt = nowMs.get();
      Thread thread = new Thread(() -> fetch(fetch, startedAt), "tidings-keys");
      thread.setDaemon(true);
      thread.start();
      return fetch;
    }

    private void fetch(CompletableFuture<Void> fetch, long startedAt) {
      try {
        Map<String, PublicKey> found = usable(read());
        synchronized (this) {
          known = found;
          fetchedAt = startedAt;
        }
        fetch.complete(null);
      } catch (Exception error) {
        LOG.log(System.Logger.Level.WARNING, "The issuer's keys at " + url + " could not be had: " + error.getMessage());
        synchronized (this) {
          failedAt = nowMs.get();
        }
        fetch.completeExceptionally(error);
      }
    }

    /** The answer, within the time limit, to its last byte. The connection is closed. */
    private byte[] read() throws IOException {
      long deadline = System.nanoTime() + TIMEOUT * 1_000_000L;
      HttpURLConnection connection = (HttpURLConnection) url.toURL().openConnection();
      connection.setConnectTimeout(TIMEOUT);
      connection.setReadTimeout(TIMEOUT);
      connection.setInstanceFollowRedirects(false);
      connection.setRequestProperty("Accept", "application/json");
      connection.setRequestProperty("Connection", "close");
      try {
        if (connection.getResponseCode() != 200) throw new IOException("answered " + connection.getResponseCode() + ", not 200");
        ByteArrayOutputStream body = new ByteArrayOutputStream();
        byte[] part = new byte[8192];
        InputStream from = connection.getInputStream();
        for (int length; (length = from.read(part)) != -1; body.write(part, 0, length)) {
          if (body.size() > MAX_BYTES || System.nanoTime() > deadline) throw new IOException("longer than 256 KiB, or not whole in time");
        }
        if (body.size() > MAX_BYTES) throw new IOException("longer than 256 KiB");
        return body.toByteArray();
      } finally {
        connection.disconnect();
      }
    }

    /** The Ed25519 keys of a set. Throws if there is none: such a set replaces no good one. */
    private static Map<String, PublicKey> usable(byte[] raw) {
      Map<String, Object> set = Json.object(raw, false);
      Map<String, PublicKey> keys = new HashMap<>();
      for (Object each : set != null && set.get("keys") instanceof List<?> listed ? listed : List.of()) {
        if (!(each instanceof Map<?, ?> key) || !"OKP".equals(key.get("kty")) || !"Ed25519".equals(key.get("crv"))) continue;
        byte[] x = key.get("x") instanceof String text ? fromBase64url(text) : null;
        if (!(key.get("kid") instanceof String kid) || x == null || x.length != 32) continue;
        try {
          keys.putIfAbsent(kid, KeyFactory.getInstance("Ed25519").generatePublic(new X509EncodedKeySpec(concat(SPKI, x))));
        } catch (GeneralSecurityException error) {
          // Not a usable key: another one may be.
        }
      }
      if (keys.isEmpty()) throw new IllegalStateException("no Ed25519 key in it");
      return keys;
    }

    private static byte[] concat(byte[] one, byte[] other) {
      byte[] both = Arrays.copyOf(one, one.length + other.length);
      System.arraycopy(other, 0, both, one.length, other.length);
      return both;
    }
  }

  /** Remembers what was handled, in this process. */
  public static final class MemoryStore implements Store {
    private record Entry(String owner, boolean isHandled, long untilMs) {}

    private final LinkedHashMap<String, Entry> entries = new LinkedHashMap<>();
    private final int maxEntries;
    private final Supplier<Long> nowMs;

    public MemoryStore(int maxEntries, Supplier<Long> nowMs) {
      this.maxEntries = maxEntries;
      this.nowMs = nowMs;
    }

    @Override
    public synchronized Claim claim(String key, int seconds) {
      Entry before = inForce(key);
      if (before != null) return new Claim(before.isHandled ? Status.HANDLED : Status.IN_PROGRESS, null);
      String owner = UUID.randomUUID().toString();
      put(key, new Entry(owner, false, nowMs.get() + seconds * 1000L));
      return new Claim(Status.CLAIMED, owner);
    }

    @Override
    public synchronized boolean record(String key, String owner, int seconds) {
      Entry before = inForce(key);
      if (before != null && (before.isHandled || !before.owner.equals(owner))) return false;
      put(key, new Entry(owner, true, nowMs.get() + seconds * 1000L));
      return true;
    }

    @Override
    public synchronized boolean release(String key, String owner) {
      Entry before = inForce(key);
      if (before == null || before.isHandled || !before.owner.equals(owner)) return false;
      entries.remove(key);
      return true;
    }

    private Entry inForce(String key) {
      Entry entry = entries.get(key);
      return entry != null && entry.untilMs > nowMs.get() ? entry : null;
    }

    private void put(String key, Entry entry) {
      entries.remove(key);
      entries.put(key, entry);
      while (entries.size() > maxEntries) entries.remove(entries.keySet().iterator().next());
    }
  }

  /** JSON (RFC 8259) in UTF-8, as Map, List, String, Double, Boolean and null: Java has no JSON parser. */
  static final class Json {
    private final String text;
    private final boolean isStrict;
    private int at;

    private Json(String text, boolean isStrict) {
      this.text = text;
      this.isStrict = isStrict;
    }

    /** An object; if strict, one in which no object has duplicate names. Null for anything else. */
    @SuppressWarnings("unchecked")
    static Map<String, Object> object(byte[] raw, boolean isStrict) {
      if (raw == null) return null;
      try {
        String text = StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(raw)).toString();
        Json json = new Json(text, isStrict);
        Object value = json.value(0);
        json.space();
        return json.at == text.length() && value instanceof Map<?, ?> ? (Map<String, Object>) value : null;
      } catch (CharacterCodingException | IllegalArgumentException | IndexOutOfBoundsException error) {
        return null;
      }
    }

    private Object value(int depth) {
      if (depth > 100) throw new IllegalArgumentException("nested too deeply");
      space();
      char first = text.charAt(at);
      if (first == '{') return members(depth);
      if (first == '[') return items(depth);
      if (first == '"') return string();
      for (Map.Entry<String, Object> word : WORDS.entrySet()) {
        if (text.startsWith(word.getKey(), at)) {
          at += word.getKey().length();
          return word.getValue() == NULL ? null : word.getValue();
        }
      }
      Matcher number = NUMBER.matcher(text).region(at, text.length());
      if (!number.lookingAt()) throw new IllegalArgumentException("no JSON");
      at = number.end();
      return Double.valueOf(number.group());
    }

    private static final Object NULL = new Object();
    private static final Map<String, Object> WORDS = Map.of("true", true, "false", false, "null", NULL);
    private static final Pattern NUMBER = Pattern.compile("-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?");

    private Map<String, Object> members(int depth) {
      Map<String, Object> members = new LinkedHashMap<>();
      at++;
      if (isNext('}')) return members;
      do {
        space();
        String name = string();
        space();
        expect(':');
        Object value = value(depth + 1);
        if (isStrict && members.containsKey(name)) throw new IllegalArgumentException("a name twice");
        members.put(name, value);
      } while (isNext(','));
      expect('}');
      return members;
    }

    private List<Object> items(int depth) {
      List<Object> items = new ArrayList<>();
      at++;
      if (isNext(']')) return items;
      do items.add(value(depth + 1)); while (isNext(','));
      expect(']');
      return items;
    }

    private String string() {
      expect('"');
      StringBuilder content = new StringBuilder();
      for (char next = text.charAt(at++); next != '"'; next = text.charAt(at++)) {
        if (next < ' ') throw new IllegalArgumentException("a control character");
        if (next != '\\') {
          content.append(next);
          continue;
        }
        char escaped = text.charAt(at++);
        int plain = "\"\\/bfnrt".indexOf(escaped);
        if (plain >= 0) {
          content.append("\"\\/\b\f\n\r\t".charAt(plain));
        } else if (escaped == 'u') {
          content.append((char) new BigInteger(hex(text.substring(at, at + 4)), 16).intValue());
          at += 4;
        } else {
          throw new IllegalArgumentException("an escape that is none");
        }
      }
      return content.toString();
    }

    private static String hex(String digits) {
      if (!digits.matches("[0-9a-fA-F]{4}")) throw new IllegalArgumentException("an escape that is none");
      return digits;
    }

    private boolean isNext(char wanted) {
      space();
      if (text.charAt(at) != wanted) return false;
      at++;
      return true;
    }

    private void expect(char wanted) {
      if (text.charAt(at++) != wanted) throw new IllegalArgumentException("no JSON");
    }

    private void space() {
      while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) at++;
    }
  }
}
