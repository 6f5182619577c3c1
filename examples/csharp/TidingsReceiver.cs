// Receives deliveries of Tidings: verifies them, handles each once, and answers in time. One file to copy: .NET 8 or newer, ASP.NET
// Core, and `dotnet add package BouncyCastle.Cryptography`. NOT RUN, see docs/receivers/csharp.md. docs/receivers/README.md explains
// what it does, and why.
#nullable enable
using System.Globalization;
using System.Net;
using System.Security.Cryptography;
using System.Text;
using System.Text.Json;
using System.Text.RegularExpressions;
using Microsoft.AspNetCore.Http;
using Org.BouncyCastle.Math.EC.Rfc8032;

/// <summary>The content of a delivery. EventId is the delivery's id, Id the event's own: the same for all redeliveries.</summary>
public sealed record Delivery(string Id, string WebhookId, string EventId, string EventType, string EventTime, JsonElement Payload);

/// <summary>Thrown by a handler: the delivery is answered 429, and the webhook receives nothing for that many seconds.</summary>
public sealed class RetryLaterException : Exception
{
    public int Seconds { get; }

    public RetryLaterException(int seconds) : base($"again in {seconds} s")
    {
        ArgumentOutOfRangeException.ThrowIfNegative(seconds);
        ArgumentOutOfRangeException.ThrowIfGreaterThan(seconds, 86_400);
        Seconds = seconds;
    }
}

public enum ClaimStatus { Claimed, InProgress, Handled }

/// <summary>Remembers what was handled. A claim has an owner; only the owner may record or release it.</summary>
public interface IReplayStore
{
    ValueTask<(ClaimStatus Status, string Owner)> ClaimAsync(string key, TimeSpan hold);
    ValueTask<bool> RecordAsync(string key, string owner, TimeSpan keep);
    ValueTask<bool> ReleaseAsync(string key, string owner);
}

public sealed class TidingsReceiver
{
    private const int MaxBody = 1 << 20;
    private const int MaxToken = 16_384;
    private const double Lifetime = 300;
    private const double Tolerance = 60;
    private static readonly TimeSpan ClaimFor = TimeSpan.FromSeconds(60);
    private static readonly TimeSpan RememberFor = TimeSpan.FromHours(96);

    private readonly string issuer;
    private readonly string audience;
    private readonly Func<Delivery, CancellationToken, Task> handler;
    private readonly IssuerKeys keys;

    /// <summary>The ids of your own webhooks: others may register one for your URL. Not checked unless given.</summary>
    public IReadOnlyCollection<string>? WebhookIds
    {
        get => webhookIds;
        init => webhookIds = value is { Count: 0 } ? throw new ArgumentException("It is empty, and would let in none; leave it out to let in all.") : value;
    }
    private readonly IReadOnlyCollection<string>? webhookIds;
    public IReplayStore Store { get; init; } = new MemoryReplayStore();
    public Func<double> NowSeconds { get; init; } = () => DateTimeOffset.UtcNow.ToUnixTimeMilliseconds() / 1000.0;
    /// <summary>The time until a 503: the service waits 15 s.</summary>
    public TimeSpan Timeout { get; init; } = TimeSpan.FromSeconds(14);
    /// <summary>By default a line for each fault of one's own; what strangers send fills no log.</summary>
    public Action<string, Exception?> OnRefused { get; init; } = (code, cause) =>
    {
        if (cause is not null && code is not ("keys_unavailable" or "body_incomplete")) Console.Error.WriteLine($"tidings: {code}: {cause.Message}");
    };

    /// <param name="keysUrl">where the issuer publishes its keys, if not at its /.well-known/jwks.json</param>
    public TidingsReceiver(string issuer, string audience, Func<Delivery, CancellationToken, Task> handler, string? keysUrl = null)
    {
        foreach (var url in new[] { issuer, audience })
            if (!Uri.TryCreate(url, UriKind.Absolute, out var parsed) || parsed.Scheme is not ("http" or "https"))
                throw new ArgumentException($"{url} should be a URL.");
        this.issuer = issuer;
        this.audience = audience;
        this.handler = handler ?? throw new ArgumentNullException(nameof(handler));
        keys = new IssuerKeys(new Uri(keysUrl ?? issuer.TrimEnd('/') + "/.well-known/jwks.json"));
    }

    /// <summary>Why a request is not answered 200.</summary>
    private sealed class Refused(string code, Exception? cause = null, int? retryAfter = null) : Exception(code, cause)
    {
        public int? RetryAfter { get; } = retryAfter;

        public int Status => Message switch
        {
            "method" => 405,
            "body_too_large" => 413,
            "retry_later" => 429,
            "body" or "handler_failed" => 500,
            "body_incomplete" or "in_progress" or "timeout" or "keys_unavailable" or "replay_store_unavailable" => 503,
            _ => 401,
        };
    }

    public async Task InvokeAsync(HttpContext context)
    {
        var since = Environment.TickCount64;
        byte[]? body = null;
        Refused? unread = null;
        try { body = await ReadAsync(context.Request.Body); }
        catch (Refused refused) { unread = refused; }
        catch (IOException error) { unread = new Refused("body_incomplete", error); }
        var (status, headers, content) = await ReceiveAsync(context.Request.Method, context.Request.Headers.Authorization, body, unread, since);
        if (context.Response.HasStarted) return;
        context.Response.StatusCode = status;
        foreach (var (name, value) in headers) context.Response.Headers[name] = value;
        await context.Response.WriteAsync(content);
    }

    /// <summary>Status, headers and body of the answer. Never throws.</summary>
    public Task<(int Status, Dictionary<string, string> Headers, string Content)> ReceiveAsync(string method, string? authorization, byte[] body) =>
        ReceiveAsync(method, authorization, body, null, Environment.TickCount64);

    private async Task<(int, Dictionary<string, string>, string)> ReceiveAsync(string method, string? authorization, byte[]? body, Refused? unread, long since)
    {
        try
        {
            if (method != "POST") throw new Refused("method");
            var bearer = Regex.Match(authorization ?? "", @"\ABearer +(\S.*)\z", RegexOptions.IgnoreCase | RegexOptions.Singleline | RegexOptions.CultureInvariant);
            if (!bearer.Success) throw new Refused("token_missing");
            if (unread is not null) throw unread;
            if (body!.Length > MaxBody) throw new Refused("body_too_large");
            var delivery = await VerifyAsync(bearer.Groups[1].Value.TrimEnd(), body);
            await HandleInTimeAsync(delivery, since);
            return (200, [], "");
        }
        catch (Exception error)
        {
            return Answer(error as Refused ?? new Refused("handler_failed", error));
        }
    }

    private (int, Dictionary<string, string>, string) Answer(Refused refused)
    {
        try { OnRefused(refused.Message, refused.InnerException); }
        catch (Exception) { /* What is told changes no answer. */ }
        var headers = new Dictionary<string, string> { ["Content-Type"] = "application/json" };
        if (refused.Message == "token_missing") headers["WWW-Authenticate"] = "Bearer";
        else if (refused.Status == 401) headers["WWW-Authenticate"] = $"Bearer error=\"invalid_token\", error_description=\"{refused.Message}\"";
        if (refused.Message == "method") headers["Allow"] = "POST";
        if (refused.Message == "body_too_large") headers["Connection"] = "close";
        if (refused.RetryAfter is { } seconds) headers["Retry-After"] = seconds.ToString(CultureInfo.InvariantCulture);
        return (refused.Status, headers, $"{{\"error\":\"{refused.Message}\"}}");
    }

    private static async Task<byte[]> ReadAsync(Stream from)
    {
        using var body = new MemoryStream();
        var buffer = new byte[65_536];
        long total = 0;
        for (int read; (read = await from.ReadAsync(buffer)) > 0 && total <= 8 * MaxBody;)
        {
            total += read;
            if (total <= MaxBody) body.Write(buffer, 0, read);
        }
        return total <= MaxBody ? body.ToArray() : throw new Refused("body_too_large");
    }

    // The checks, in this order. Nothing in the token is trusted before its signature is verified.

    private async Task<Delivery> VerifyAsync(string token, byte[] body)
    {
        var parts = token.Split('.');
        if (token.Length > MaxToken || parts.Length != 3 || !IsAlphabet(parts[2])) throw new Refused("format");
        var header = ObjectIn(FromBase64Url(parts[0]), isStrict: true) ?? throw new Refused("format");
        var claims = ObjectIn(FromBase64Url(parts[1]), isStrict: true) ?? throw new Refused("format");
        if (header.ContainsKey("crit") || header.ContainsKey("b64")) throw new Refused("format");
        if (header.ContainsKey("typ") && !Regex.IsMatch(TextIn(header, "typ") ?? "", @"\A(application/)?jwt\z", RegexOptions.IgnoreCase | RegexOptions.CultureInvariant))
            throw new Refused("format");
        if (TextIn(header, "alg") != "EdDSA") throw new Refused("algorithm");
        byte[]? key;
        try { key = await keys.GetAsync(TextIn(header, "kid") ?? ""); }
        catch (Exception error) { throw new Refused("keys_unavailable", error); }
        if (key is null) throw new Refused("key");
        var signature = FromBase64Url(parts[2]);
        var signed = Encoding.ASCII.GetBytes($"{parts[0]}.{parts[1]}");
        if (signature is not { Length: 64 } || !Ed25519.Verify(signature, 0, key, 0, signed, 0, signed.Length)) throw new Refused("signature");
        return CheckClaims(claims, body);
    }

    private Delivery CheckClaims(Dictionary<string, JsonElement> claims, byte[] body)
    {
        var now = NowSeconds();
        if (TextIn(claims, "iss") != issuer) throw new Refused("issuer");
        if (TextIn(claims, "aud") != audience) throw new Refused("audience");
        var (exp, iat) = (TimeIn(claims, "exp"), TimeIn(claims, "iat"));
        if (exp is null || now >= exp || (iat is not null && (exp <= iat || exp - iat > Lifetime))) throw new Refused("expiry");
        var said = ObjectIn(body, isStrict: false);
        var jti = TextIn(claims, "jti");
        if (string.IsNullOrEmpty(jti) || said is null || TextIn(said, "eventId") != jti) throw new Refused("jti");
        // A token of an older server has no such claim.
        if (claims.ContainsKey("body_sha256") && TextIn(claims, "body_sha256") != ToBase64Url(SHA256.HashData(body))) throw new Refused("body_digest");
        if (WebhookIds is not null && (TextIn(said, "webhookId") is not { } own || !WebhookIds.Contains(own))) throw new Refused("webhook");
        var nbf = claims.ContainsKey("nbf") ? TimeIn(claims, "nbf") : iat;
        if (iat is null || nbf is null || Math.Max(iat.Value, nbf.Value) > now + Tolerance) throw new Refused("issued_at");
        // Signed, but unknown to this receiver: 5XX, so that nothing is lost.
        if (TextIn(said, "webhookId") is not { } webhookId || TextIn(said, "eventType") is not { } eventType
            || TextIn(said, "eventTime") is not { } eventTime
            || !said.TryGetValue("payload", out var payload) || payload.ValueKind != JsonValueKind.Object)
            throw new Refused("body");
        var sub = TextIn(claims, "sub");
        return new Delivery(string.IsNullOrEmpty(sub) ? jti : sub, webhookId, jti, eventType, eventTime, payload);
    }

    /// <summary>If a handler is too slow, the receiver answers 503; the handler still counts if it succeeds later.</summary>
    private async Task HandleInTimeAsync(Delivery delivery, long since)
    {
        var cancellation = new CancellationTokenSource();
        var work = Task.Run(() => HandleOnceAsync(delivery, cancellation.Token));
        if (await Task.WhenAny(work, Task.Delay(Left(since))) == work)
        {
            await work;
            return;
        }
        _ = work.ContinueWith(late => OnRefused("handler_failed", late.Exception), TaskContinuationOptions.OnlyOnFaulted);
        await cancellation.CancelAsync();
        throw new Refused("timeout");
    }

    /// <summary>What is left of the time, which counts from the request's arrival.</summary>
    private TimeSpan Left(long since)
    {
        var left = Timeout - TimeSpan.FromMilliseconds(Environment.TickCount64 - since);
        return left > TimeSpan.Zero ? left : TimeSpan.Zero;
    }

    private async Task HandleOnceAsync(Delivery delivery, CancellationToken cancelled)
    {
        var key = delivery.EventId;
        (ClaimStatus Status, string Owner) claim;
        try { claim = await Store.ClaimAsync(key, ClaimFor); }
        catch (Exception error) { throw new Refused("replay_store_unavailable", error); }
        if (claim.Status != ClaimStatus.Claimed) throw new Refused(claim.Status == ClaimStatus.Handled ? "replay" : "in_progress");
        try
        {
            if (delivery.EventType != "ping") await handler(delivery, cancelled);
        }
        catch (Exception error)
        {
            await SettleAsync(() => Store.ReleaseAsync(key, claim.Owner));
            throw error is RetryLaterException later ? new Refused("retry_later", retryAfter: later.Seconds) : new Refused("handler_failed", error);
        }
        await SettleAsync(() => Store.RecordAsync(key, claim.Owner, RememberFor));
    }

    /// <summary>The outcome of the event stands, even if the store could not record it.</summary>
    private async Task SettleAsync(Func<ValueTask<bool>> change)
    {
        try { await change(); }
        catch (Exception error) { OnRefused("replay_store_unavailable", error); }
    }

    private static bool IsAlphabet(string text) => text.All(it => char.IsAsciiLetterOrDigit(it) || it is '-' or '_');

    /// <summary>The bytes of canonical base64url; null otherwise.</summary>
    internal static byte[]? FromBase64Url(string? text)
    {
        if (text is null || !IsAlphabet(text) || text.Length % 4 == 1) return null;
        var raw = Convert.FromBase64String(text.Replace('-', '+').Replace('_', '/').PadRight((text.Length + 3) / 4 * 4, '='));
        return ToBase64Url(raw) == text ? raw : null;
    }

    private static string ToBase64Url(byte[] raw) => Convert.ToBase64String(raw).TrimEnd('=').Replace('+', '-').Replace('/', '_');

    /// <summary>A JSON object in UTF-8; if strict, without duplicate names.</summary>
    internal static Dictionary<string, JsonElement>? ObjectIn(byte[]? raw, bool isStrict)
    {
        if (raw is null) return null;
        try
        {
            _ = new UTF8Encoding(false, throwOnInvalidBytes: true).GetString(raw);
            using var document = JsonDocument.Parse(raw, new JsonDocumentOptions { MaxDepth = 100 });
            if (document.RootElement.ValueKind != JsonValueKind.Object) return null;
            var members = new Dictionary<string, JsonElement>(StringComparer.Ordinal);
            foreach (var member in document.RootElement.EnumerateObject())
            {
                if (!members.TryAdd(member.Name, member.Value.Clone()))
                {
                    if (isStrict) return null;
                    members[member.Name] = member.Value.Clone();
                }
            }
            return members;
        }
        catch (Exception error) when (error is JsonException or ArgumentException or InvalidOperationException)
        {
            return null;
        }
    }

    internal static string? TextIn(Dictionary<string, JsonElement> from, string name)
    {
        if (!from.TryGetValue(name, out var value) || value.ValueKind != JsonValueKind.String) return null;
        try { return value.GetString(); }
        catch (InvalidOperationException) { return null; /* Half a character. */ }
    }

    /// <summary>NumericDate, RFC 7519 section 2.</summary>
    private static double? TimeIn(Dictionary<string, JsonElement> claims, string name) =>
        claims.TryGetValue(name, out var value) && value.ValueKind == JsonValueKind.Number && value.TryGetDouble(out var time)
            && Math.Abs(time) <= 8.64e12 ? time : null;
}

/// <summary>
/// The issuer's keys: fetched when first needed, in the background before they expire, and for an unknown kid. A known key waits for a
/// fetch only when the keys are older than 300 s: it may have been revoked. If that fails, it serves for an hour. At most one request is
/// under way.
/// </summary>
internal sealed class IssuerKeys(Uri url)
{
    private const long RefreshAfter = 240_000, Fresh = 300_000, Stale = 3_600_000, LeastBetween = 10_000;
    private static readonly HttpClient Client = new(new SocketsHttpHandler { AllowAutoRedirect = false })
    {
        Timeout = TimeSpan.FromSeconds(5),
        MaxResponseContentBufferSize = 256 * 1024,
    };

    private readonly object gate = new();
    private Dictionary<string, byte[]> known = [];
    private long? fetchedAt, failedAt;
    private Task? underWay;

    /// <summary>Null if the issuer has no such key.</summary>
    public async Task<byte[]?> GetAsync(string kid)
    {
        Task fetch;
        bool mayServe;
        lock (gate)
        {
            var age = fetchedAt is { } at ? Environment.TickCount64 - at : long.MaxValue;
            var isKnown = known.TryGetValue(kid, out var key);
            if (age < (isKnown ? RefreshAfter : LeastBetween)) return key;
            fetch = Refresh();
            if (isKnown && age < Fresh) return key;
            mayServe = isKnown && age < Stale;
        }
        try { await fetch; }
        catch (Exception) when (mayServe) { /* The old keys serve. */ }
        lock (gate) return known.GetValueOrDefault(kid);
    }

    private Task Refresh()
    {
        if (underWay is { IsCompleted: false }) return underWay;
        if (failedAt is { } at && Environment.TickCount64 - at < LeastBetween) return underWay!;
        underWay = Task.Run(FetchAsync);
        _ = underWay.ContinueWith(failed => failed.Exception, TaskContinuationOptions.OnlyOnFaulted);
        return underWay;
    }

    private async Task FetchAsync()
    {
        var startedAt = Environment.TickCount64;
        try
        {
            // Buffered, so that the client's time limit covers all of it.
            using var response = await Client.GetAsync(url, HttpCompletionOption.ResponseContentRead);
            if (response.StatusCode != HttpStatusCode.OK) throw new HttpRequestException($"{url} answered {(int)response.StatusCode}, not 200.");
            var usable = Usable(await response.Content.ReadAsByteArrayAsync());
            lock (gate) (known, fetchedAt) = (usable, startedAt);
        }
        catch (Exception error)
        {
            Console.Error.WriteLine($"tidings: the issuer's keys could not be had: {error.Message}");
            lock (gate) failedAt = Environment.TickCount64;
            throw;
        }
    }

    /// <summary>The Ed25519 keys of a set. Throws if there is none: such a set replaces no good one.</summary>
    private static Dictionary<string, byte[]> Usable(byte[] raw)
    {
        var usable = new Dictionary<string, byte[]>(StringComparer.Ordinal);
        var set = TidingsReceiver.ObjectIn(raw, isStrict: false);
        if (set is not null && set.TryGetValue("keys", out var listed) && listed.ValueKind == JsonValueKind.Array)
        {
            foreach (var each in listed.EnumerateArray())
            {
                var key = TidingsReceiver.ObjectIn(Encoding.UTF8.GetBytes(each.GetRawText()), isStrict: false);
                if (key is null || TidingsReceiver.TextIn(key, "kty") != "OKP" || TidingsReceiver.TextIn(key, "crv") != "Ed25519") continue;
                var x = TidingsReceiver.FromBase64Url(TidingsReceiver.TextIn(key, "x"));
                if (TidingsReceiver.TextIn(key, "kid") is { } kid && x is { Length: 32 }) usable.TryAdd(kid, x);
            }
        }
        return usable.Count > 0 ? usable : throw new FormatException("There is no Ed25519 key in the set.");
    }
}

/// <summary>Remembers what was handled, in this process.</summary>
public sealed class MemoryReplayStore(int maxEntries = 100_000) : IReplayStore
{
    private sealed record Entry(string Owner, bool IsHandled, DateTime Until);

    private readonly object gate = new();
    private readonly Dictionary<string, Entry> entries = new(StringComparer.Ordinal);
    private readonly Queue<string> order = new();

    public ValueTask<(ClaimStatus, string)> ClaimAsync(string key, TimeSpan hold)
    {
        lock (gate)
        {
            if (InForce(key) is { } before) return new((before.IsHandled ? ClaimStatus.Handled : ClaimStatus.InProgress, ""));
            var owner = Guid.NewGuid().ToString();
            Put(key, new Entry(owner, false, DateTime.UtcNow + hold));
            return new((ClaimStatus.Claimed, owner));
        }
    }

    public ValueTask<bool> RecordAsync(string key, string owner, TimeSpan keep)
    {
        lock (gate)
        {
            if (InForce(key) is { } before && (before.IsHandled || before.Owner != owner)) return new(false);
            Put(key, new Entry(owner, true, DateTime.UtcNow + keep));
            return new(true);
        }
    }

    public ValueTask<bool> ReleaseAsync(string key, string owner)
    {
        lock (gate)
        {
            if (InForce(key) is not { IsHandled: false } before || before.Owner != owner) return new(false);
            // The entry keeps its place in the order.
            entries[key] = before with { Until = DateTime.MinValue };
            return new(true);
        }
    }

    private Entry? InForce(string key) => entries.TryGetValue(key, out var entry) && entry.Until > DateTime.UtcNow ? entry : null;

    private void Put(string key, Entry entry)
    {
        if (!entries.ContainsKey(key)) order.Enqueue(key);
        entries[key] = entry;
        while (order.Count > maxEntries) entries.Remove(order.Dequeue());
    }
}
