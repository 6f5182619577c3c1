<?php

declare(strict_types=1);

namespace Tidings;

/*
 * Receives deliveries of Tidings: verifies them, handles each once, and answers. One file to copy; PHP 8.1 or newer with sodium, curl
 * or allow_url_fopen, and a PDO database, because a PHP process remembers nothing between requests.
 *
 *     $receiver = new Receiver('https://tidings.example.com', 'https://example.com/hooks', fn (array $event) => handle($event), $pdo);
 *     $receiver->serve();
 *
 * docs/receivers/README.md explains what it does, and why.
 */

final class Refused extends \Exception
{
    private const STATUSES = [
        'method' => 405, 'body_too_large' => 413, 'retry_later' => 429, 'body' => 500, 'handler_failed' => 500,
        'in_progress' => 503, 'keys_unavailable' => 503, 'replay_store_unavailable' => 503,
    ];

    public function __construct(public readonly string $reason, public readonly ?int $retryAfter = null, ?\Throwable $cause = null)
    {
        parent::__construct($reason, 0, $cause);
    }

    public function status(): int
    {
        return self::STATUSES[$this->reason] ?? 401;
    }

    /** @return array{int, array<string, string>, string} */
    public function answer(): array
    {
        $headers = ['Content-Type' => 'application/json'];
        if ($this->reason === 'token_missing') {
            $headers['WWW-Authenticate'] = 'Bearer';
        } elseif ($this->status() === 401) {
            $headers['WWW-Authenticate'] = "Bearer error=\"invalid_token\", error_description=\"$this->reason\"";
        }
        if ($this->reason === 'method') {
            $headers['Allow'] = 'POST';
        }
        if ($this->retryAfter !== null) {
            $headers['Retry-After'] = (string) $this->retryAfter;
        }
        return [$this->status(), $headers, json_encode(['error' => $this->reason])];
    }
}

/** Thrown by a handler: the delivery is answered 429, and the webhook receives nothing for that many seconds. */
final class RetryLater extends \Exception
{
    public function __construct(public readonly int $seconds)
    {
        if ($seconds < 0 || $seconds > 86400) {
            throw new \ValueError("$seconds is no number of seconds to wait, from 0 to 86400.");
        }
        parent::__construct("again in $seconds s");
    }
}

/** The state that processes share, by PDO: what was handled, and the issuer's keys. Creates its table if it is missing. */
final class Store
{
    public function __construct(private \PDO $pdo, private \Closure $now)
    {
        $pdo->setAttribute(\PDO::ATTR_ERRMODE, \PDO::ERRMODE_EXCEPTION);
        $pdo->exec('CREATE TABLE IF NOT EXISTS tidings_receipts (id VARCHAR(191) NOT NULL PRIMARY KEY, owner VARCHAR(40) NOT NULL,
            content VARCHAR(16000) NOT NULL, until_s BIGINT NOT NULL)');
    }

    /** @return array{string, ?string} "claimed" and its owner, "in_progress" or "handled" */
    public function claim(string $key, int $seconds): array
    {
        $owner = bin2hex(random_bytes(16));
        $until = ($this->now)() + $seconds;
        for ($try = 0; $try < 2; $try++) {
            $before = $this->find($key);
            if ($before === null && $this->insert($key, $owner, '', $until)) {
                return ['claimed', $owner];
            }
            $before ??= $this->find($key);
            if ($before !== null && $before['until_s'] > ($this->now)()) {
                return [$before['content'] === '' ? 'in_progress' : 'handled', null];
            }
            // Expired: of several that take it over, the one whose statement changes the row gets it.
            $taken = $before !== null && $this->run(
                "UPDATE tidings_receipts SET owner = ?, content = '', until_s = ? WHERE id = ? AND owner = ? AND until_s = ?",
                [$owner, $until, $key, $before['owner'], $before['until_s']],
            );
            if ($taken) {
                return ['claimed', $owner];
            }
        }
        return ['in_progress', null];
    }

    /** Only the owner of a claim records it, even an expired one that nobody else has taken. */
    public function record(string $key, string $owner, int $seconds): bool
    {
        $now = ($this->now)();
        return $this->run(
            "UPDATE tidings_receipts SET content = 'handled', until_s = ? WHERE id = ? AND content = '' AND (owner = ? OR until_s <= ?)",
            [$now + $seconds, $key, $owner, $now],
        );
    }

    public function release(string $key, string $owner): bool
    {
        return $this->run("DELETE FROM tidings_receipts WHERE id = ? AND owner = ? AND content = '' AND until_s > ?", [$key, $owner, ($this->now)()]);
    }

    public function get(string $key): ?array
    {
        return $this->find($key);
    }

    public function put(string $key, string $content, int $until): void
    {
        $this->forget($key);
        $this->insert($key, '', $content, $until);
    }

    public function forget(string $key): void
    {
        $this->run('DELETE FROM tidings_receipts WHERE id = ?', [$key]);
    }

    private function find(string $key): ?array
    {
        $statement = $this->pdo->prepare('SELECT owner, content, until_s FROM tidings_receipts WHERE id = ?');
        $statement->execute([$key]);
        $row = $statement->fetch(\PDO::FETCH_ASSOC);
        return $row === false ? null : ['until_s' => (int) $row['until_s']] + $row;
    }

    private function insert(string $key, string $owner, string $content, int $until): bool
    {
        try {
            return $this->run('INSERT INTO tidings_receipts (id, owner, content, until_s) VALUES (?, ?, ?, ?)', [$key, $owner, $content, $until]);
        } catch (\PDOException $error) {
            if ($this->find($key) !== null) {
                return false;
            }
            throw $error;
        }
    }

    private function run(string $sql, array $values): bool
    {
        $statement = $this->pdo->prepare($sql);
        $statement->execute($values);
        return $statement->rowCount() === 1;
    }
}

final class Receiver
{
    private const MAX_BODY = 1_048_576;
    private const MAX_TOKEN = 16_384;
    private const MAX_KEYS = 262_144;
    private const LIFETIME = 300;
    private const TOLERANCE = 60;
    private const CLAIM = 60;
    private const HANDLED = 96 * 3600;
    private const REFRESH_AFTER = 240;
    private const FRESH = 300;
    private const STALE = 3600;
    private const LEAST_BETWEEN = 10;
    private const FETCH_TIMEOUT = 5.0;

    private Store $store;
    private \Closure $handler;
    private \Closure $now;
    private string $keysUrl;

    /**
     * @param callable(array): mixed $handler gets the body as an array, with the event's own id in `id`; if it throws, the event
     *     comes again
     * @param ?list<string> $webhookIds the ids of your own webhooks: others may register one for your URL
     * @param ?string $keysUrl where the issuer publishes its keys, if not at its /.well-known/jwks.json
     */
    public function __construct(
        private string $issuer,
        private string $audience,
        callable $handler,
        \PDO $pdo,
        private ?array $webhookIds = null,
        ?string $keysUrl = null,
        ?callable $now = null,
    ) {
        foreach (['issuer' => $issuer, 'audience' => $audience] as $name => $value) {
            if (!preg_match('~^https?://.~', $value)) {
                throw new \ValueError("$name is '$value'; it should be a URL.");
            }
        }
        if ($webhookIds === []) {
            throw new \ValueError('webhookIds is empty, and would let in none; leave it out to let in all.');
        }
        $this->handler = $handler(...);
        $this->now = ($now ?? time(...))(...);
        $this->keysUrl = $keysUrl ?? rtrim($issuer, '/') . '/.well-known/jwks.json';
        $this->store = new Store($pdo, $this->now);
    }

    /** Answers the current request. */
    public function serve(): void
    {
        ignore_user_abort(true);
        $body = file_get_contents('php://input', length: self::MAX_BODY + 1);
        $authorization = $_SERVER['HTTP_AUTHORIZATION'] ?? $_SERVER['REDIRECT_HTTP_AUTHORIZATION'] ?? null;
        [$status, $headers, $content] = $this->receive($_SERVER['REQUEST_METHOD'], $authorization, $body === false ? '' : $body);
        http_response_code($status);
        foreach ($headers as $name => $value) {
            header("$name: $value");
        }
        echo $content;
    }

    /** @return array{int, array<string, string>, string} status, headers and body of the answer; never throws */
    public function receive(string $method, ?string $authorization, string $body): array
    {
        try {
            if ($method !== 'POST') {
                throw new Refused('method');
            }
            if (!preg_match('/\ABearer +(\S.*)\z/is', $authorization ?? '', $match)) {
                throw new Refused('token_missing');
            }
            if (strlen($body) > self::MAX_BODY) {
                throw new Refused('body_too_large');
            }
            $this->handleOnce($this->verify(rtrim($match[1]), $body));
            return [200, [], ''];
        } catch (Refused $refused) {
            // What strangers send fills no log; a failed fetch of the keys was logged where it failed.
            if ($refused->getPrevious() !== null && $refused->reason !== 'keys_unavailable') {
                error_log("tidings: $refused->reason: {$refused->getPrevious()->getMessage()}");
            }
            return $refused->answer();
        } catch (\Throwable $error) {
            error_log("tidings: {$error->getMessage()}");
            return (new Refused('handler_failed'))->answer();
        }
    }

    /** The checks, in this order. Nothing in the token is trusted before its signature is verified. */
    private function verify(string $token, string $body): array
    {
        [$header, $claims] = $this->readToken($token);
        if (($header['alg'] ?? null) !== 'EdDSA') {
            throw new Refused('algorithm');
        }
        $kid = $header['kid'] ?? null;
        $key = $this->key(is_string($kid) ? $kid : '') ?? throw new Refused('key');
        $dot = strrpos($token, '.');
        $signature = self::fromBase64url(substr($token, $dot + 1));
        if ($signature === null || strlen($signature) !== SODIUM_CRYPTO_SIGN_BYTES
            || !sodium_crypto_sign_verify_detached($signature, substr($token, 0, $dot), $key)) {
            throw new Refused('signature');
        }
        return $this->checkClaims($claims, $body);
    }

    private function readToken(string $token): array
    {
        $parts = explode('.', $token);
        if (strlen($token) > self::MAX_TOKEN || count($parts) !== 3 || !preg_match('/\A[\w-]*\z/', $parts[2])) {
            throw new Refused('format');
        }
        [$header, $claims] = array_map(fn (string $part) => self::object(self::fromBase64url($part) ?? '', true), [$parts[0], $parts[1]]);
        $typ = $header !== null && array_key_exists('typ', $header) ? $header['typ'] : 'JWT';
        if ($header === null || $claims === null || array_key_exists('crit', $header) || array_key_exists('b64', $header)
            || !is_string($typ) || !preg_match('~\A(application/)?jwt\z~i', $typ)) {
            throw new Refused('format');
        }
        return [$header, $claims];
    }

    private function checkClaims(array $claims, string $body): array
    {
        $now = ($this->now)();
        if (($claims['iss'] ?? null) !== $this->issuer) {
            throw new Refused('issuer');
        }
        if (($claims['aud'] ?? null) !== $this->audience) {
            throw new Refused('audience');
        }
        $exp = self::timeIn($claims, 'exp');
        $iat = self::timeIn($claims, 'iat');
        if ($exp === null || $now >= $exp || ($iat !== null && ($exp <= $iat || $exp - $iat > self::LIFETIME))) {
            throw new Refused('expiry');
        }
        $event = self::object($body, false);
        $jti = $claims['jti'] ?? null;
        if (!is_string($jti) || $jti === '' || $event === null || ($event['eventId'] ?? null) !== $jti) {
            throw new Refused('jti');
        }
        // A token of an older server has no such claim.
        if (array_key_exists('body_sha256', $claims)) {
            $digest = rtrim(strtr(base64_encode(hash('sha256', $body, true)), '+/', '-_'), '=');
            if (!is_string($claims['body_sha256']) || !hash_equals($digest, $claims['body_sha256'])) {
                throw new Refused('body_digest');
            }
        }
        if ($this->webhookIds !== null && !in_array($event['webhookId'] ?? null, $this->webhookIds, true)) {
            throw new Refused('webhook');
        }
        $nbf = array_key_exists('nbf', $claims) ? self::timeIn($claims, 'nbf') : $iat;
        if ($iat === null || $nbf === null || max($iat, $nbf) > $now + self::TOLERANCE) {
            throw new Refused('issued_at');
        }
        // Signed, but unknown to this receiver: 5XX, so that nothing is lost.
        foreach (['webhookId', 'eventType', 'eventTime'] as $name) {
            if (!is_string($event[$name] ?? null)) {
                throw new Refused('body');
            }
        }
        $payload = json_decode($body)->payload ?? null;
        if (!$payload instanceof \stdClass) {
            throw new Refused('body');
        }
        $sub = $claims['sub'] ?? null;
        return ['id' => is_string($sub) && $sub !== '' ? $sub : $jti] + $event;
    }

    private function handleOnce(array $event): void
    {
        $key = $event['eventId'];
        try {
            [$status, $owner] = $this->store->claim($key, self::CLAIM);
        } catch (\Throwable $error) {
            throw new Refused('replay_store_unavailable', cause: $error);
        }
        if ($status !== 'claimed') {
            throw new Refused($status === 'handled' ? 'replay' : 'in_progress');
        }
        try {
            if ($event['eventType'] !== 'ping') {
                ($this->handler)($event);
            }
        } catch (\Throwable $error) {
            $this->settle(fn () => $this->store->release($key, $owner));
            throw $error instanceof RetryLater
                ? new Refused('retry_later', $error->seconds)
                : new Refused('handler_failed', cause: $error);
        }
        $this->settle(fn () => $this->store->record($key, $owner, self::HANDLED));
    }

    /** The outcome of the event stands, even if the store could not record it. */
    private function settle(\Closure $change): void
    {
        try {
            $change();
        } catch (\Throwable $error) {
            error_log("tidings: the store could not be told: {$error->getMessage()}");
        }
    }

    /**
     * The public key of a kid; null if the issuer has none. Keys are stored in the same table, so that every process has them. A known
     * key waits for a fetch only when the keys are older than 300 s: it may have been revoked. If that fails, it serves for an hour.
     */
    private function key(string $kid): ?string
    {
        try {
            [$keys, $age] = $this->kept();
            $isKnown = isset($keys[$kid]);
            $isFresh = $isKnown && $age < self::FRESH;
            if ($age >= ($isKnown ? self::REFRESH_AFTER : self::LEAST_BETWEEN)) {
                // One process fetches, once in ten seconds at most; others wait for it if they must.
                $owner = $this->store->claim("fetch $this->keysUrl", self::LEAST_BETWEEN)[1];
                $isFetched = match (true) {
                    $owner !== null && $isFresh => $this->fetchAfterwards($owner),
                    $owner !== null => $this->fetched($owner),
                    $isKnown && !$isFresh, $keys === [] => $this->awaitFetch(),
                    default => false,
                };
                if (!$isFetched && (!$isKnown || $age >= self::STALE)) {
                    throw new Refused('keys_unavailable');
                }
                [$keys] = $this->kept();
            }
        } catch (\PDOException $error) {
            throw new Refused('replay_store_unavailable', cause: $error);
        }
        return isset($keys[$kid]) ? base64_decode($keys[$kid]) : null;
    }

    /** @return array{array<string, string>, float} the stored keys and their age */
    private function kept(): array
    {
        $kept = $this->store->get("keys $this->keysUrl");
        $content = json_decode($kept['content'] ?? '', true);
        if (!isset($content['keys'])) {
            return [[], INF];
        }
        [$boot, $upFor] = self::uptime();
        $isSameBoot = $boot !== '' && $boot === $content['boot'];
        $age = max(($this->now)() - $kept['until_s'], $isSameBoot ? $upFor - $content['upFor'] : -INF);
        if ($age < 0) {
            // The clock was set back, and their age is unknown: they are fetched before they serve again.
            $age = self::FRESH;
            $this->store->put("keys $this->keysUrl", $kept['content'], ($this->now)() - $age);
            $this->store->forget("fetch $this->keysUrl");
        }
        return [$content['keys'], (float) $age];
    }

    /** Which start of the machine this is, and the seconds since: processes share this clock, and nobody sets it back. Linux only. */
    private static function uptime(): array
    {
        return [trim((string) @file_get_contents('/proc/sys/kernel/random/boot_id')), intdiv(hrtime(true), 1_000_000_000)];
    }

    /** Whether the keys have been fetched. */
    private function fetched(string $owner): bool
    {
        try {
            $this->fetch();
            return true;
        } catch (Refused $refused) {
            error_log("tidings: {$refused->getPrevious()?->getMessage()}");
            return false;
        } finally {
            $this->store->record("fetch $this->keysUrl", $owner, self::LEAST_BETWEEN);
        }
    }

    /** Waits until the process that fetches the keys has ended; whether there are fresh ones then. */
    private function awaitFetch(): bool
    {
        for ($end = microtime(true) + self::FETCH_TIMEOUT; microtime(true) < $end; usleep(20_000)) {
            if (($this->store->get("fetch $this->keysUrl")['content'] ?? 'handled') !== '') {
                break;
            }
        }
        return $this->kept()[1] < self::FRESH;
    }

    /** A fresh key waits for no fetch: the keys are fetched after the answer is sent. */
    private function fetchAfterwards(string $owner): bool
    {
        register_shutdown_function(function () use ($owner): void {
            if (function_exists('fastcgi_finish_request')) {
                fastcgi_finish_request();
            }
            $this->fetched($owner);
        });
        return true;
    }

    /** @return array<string, string> */
    private function fetch(): array
    {
        $startedAt = ($this->now)();
        [$boot, $upFor] = self::uptime();
        try {
            $set = self::object($this->read(), false);
            $keys = [];
            foreach (is_array($set['keys'] ?? null) ? $set['keys'] : [] as $key) {
                if (!is_array($key) || ($key['kty'] ?? null) !== 'OKP' || ($key['crv'] ?? null) !== 'Ed25519') {
                    continue;
                }
                $x = is_string($key['x'] ?? null) ? self::fromBase64url($key['x']) : null;
                if (is_string($key['kid'] ?? null) && $x !== null && strlen($x) === SODIUM_CRYPTO_SIGN_PUBLICKEYBYTES) {
                    $keys[$key['kid']] ??= base64_encode($x);
                }
            }
            if ($keys === []) {
                throw new \RuntimeException('there is no Ed25519 key in it');
            }
        } catch (\Throwable $error) {
            throw new Refused('keys_unavailable', cause: new \RuntimeException("$this->keysUrl: {$error->getMessage()}"));
        }
        $this->store->put("keys $this->keysUrl", json_encode(['keys' => $keys, 'boot' => $boot, 'upFor' => $upFor]), $startedAt);
        return $keys;
    }

    private function read(): string
    {
        $deadline = microtime(true) + self::FETCH_TIMEOUT;
        $http = ['timeout' => self::FETCH_TIMEOUT, 'follow_location' => 0, 'ignore_errors' => true, 'header' => 'Accept: application/json'];
        $stream = @fopen($this->keysUrl, 'r', false, stream_context_create(['http' => $http]));
        if ($stream === false) {
            throw new \RuntimeException('it could not be reached');
        }
        $status = stream_get_meta_data($stream)['wrapper_data'][0] ?? '';
        $content = '';
        while (preg_match('~ 200\b~', $status) && !feof($stream) && strlen($content) <= self::MAX_KEYS && microtime(true) < $deadline) {
            $content .= fread($stream, 8192);
        }
        $isWhole = feof($stream);
        fclose($stream);
        if (!preg_match('~ 200\b~', $status) || !$isWhole || strlen($content) > self::MAX_KEYS) {
            throw new \RuntimeException("it answered $status, late, or more than 256 KiB");
        }
        return $content;
    }

    /** A JSON object in UTF-8; if strict, without duplicate names. */
    private static function object(string $json, bool $isStrict): ?array
    {
        if (!str_starts_with(ltrim($json, " \t\r\n"), '{')) {
            return null;
        }
        $content = json_decode($json, true);
        if (!is_array($content)) {
            return null;
        }
        return $isStrict && self::countNames($json) !== count($content) ? null : $content;
    }

    /** The number of names of the outermost object, duplicates included. */
    private static function countNames(string $json): int
    {
        preg_match_all('/"(?:[^"\\\\]|\\\\.)*"\s*:?|[[\]{}]/', $json, $matches);
        $depth = $count = 0;
        foreach ($matches[0] as $token) {
            $depth += $token === '{' || $token === '[' ? 1 : ($token === '}' || $token === ']' ? -1 : 0);
            $count += $depth === 1 && $token[0] === '"' && str_ends_with($token, ':') ? 1 : 0;
        }
        return $count;
    }

    /** NumericDate, RFC 7519 section 2. */
    private static function timeIn(array $claims, string $name): int|float|null
    {
        $value = $claims[$name] ?? null;
        return (is_int($value) || is_float($value)) && abs($value) <= 8.64e12 ? $value : null;
    }

    /** The bytes of canonical base64url. */
    private static function fromBase64url(string $text): ?string
    {
        if (!preg_match('/\A[\w-]*\z/', $text)) {
            return null;
        }
        $raw = base64_decode(strtr($text, '-_', '+/'));
        return $raw !== false && rtrim(strtr(base64_encode($raw), '+/', '-_'), '=') === $text ? $raw : null;
    }
}
