<?php

// php test.php KEY_SETS_URL: runs every vector of docs/receivers/vectors.json, whose key sets a server answers at KEY_SETS_URL/NAME, and
// what is to be handled once. Ends with 1 when something is not as it should be.

require __DIR__ . '/TidingsReceiver.php';

use Tidings\Receiver;
use Tidings\RetryLater;
use Tidings\Store;

ini_set('error_log', '/dev/null');
$file = json_decode(file_get_contents(__DIR__ . '/../../docs/receivers/vectors.json'), true);
$keySets = $argv[1];
$passed = $failed = 0;

$expect = function (string $name, mixed $found, mixed $expected) use (&$passed, &$failed): void {
    if ($found === $expected) {
        $passed++;
        return;
    }
    $failed++;
    echo "$name: expected ", json_encode($expected), ', found ', json_encode($found), "\n";
};
$receiver = fn (array $vector, callable $handler) => new Receiver(
    $file['issuer'],
    $file['audience'],
    $handler,
    new PDO('sqlite::memory:'),
    $vector['webhookIds'] ?? null,
    "$keySets/{$vector['keySet']}",
    fn () => (int) $vector['time'],
);
$body = fn (array $vector) => ($vector['body'] ?? base64_decode($vector['bodyBase64'])) . str_repeat(' ', $vector['spaces'] ?? 0);
$fine = function (array $event): void {
};

foreach ($file['vectors'] as $vector) {
    $handled = [];
    $given = $receiver($vector, function (array $event) use (&$handled): void {
        $handled[] = $event['id'];
    });
    [$status] = $given->receive($vector['method'] ?? 'POST', $vector['authorization'], $body($vector));
    $wanted = $vector['verdict']['handled'] === null ? [] : [$vector['verdict']['handled']];
    $expect($vector['name'], [$status, $handled], [$vector['verdict']['status'], $wanted]);
}

foreach ($file['sequences'] as ['name' => $name, 'steps' => $steps]) {
    [$clock, $at, $handled, $answers] = [0, 0, [], []];
    $given = new Receiver($file['issuer'], $file['audience'], function (array $event) use (&$at, &$handled, &$take, $steps): void {
        $nth = $at;
        $handled[$nth] = $event['id'];
        if ($steps[$nth + 1]['during'] ?? false) {
            $take($nth + 1);
        }
        if (($steps[$nth]['handler'] ?? '') === 'fails') {
            throw new Error('no');
        }
    }, new PDO('sqlite::memory:'), null, "$keySets/published", function () use (&$clock) {
        return $clock;
    });
    $take = function (int $nth) use (&$at, &$clock, &$answers, &$handled, $given, $steps): void {
        [$at, $clock] = [$nth, $steps[$nth]['time']];
        [$status, , $content] = $given->receive('POST', $steps[$nth]['authorization'], $steps[$nth]['body']);
        $code = json_decode($content, true)['error'] ?? 'ok';
        $answers[$nth] = ['status' => $status, 'code' => $code, 'handled' => $handled[$nth] ?? null];
    };
    foreach ($steps as $nth => $step) {
        if (!($step['during'] ?? false)) {
            $take($nth);
        }
    }
    ksort($answers);
    $expect($name, $answers, array_column($steps, 'verdict'));
}

$good = $file['vectors'][0];
$events = [];
$given = $receiver($good, function (array $event) use (&$events): void {
    $events[] = $event;
});
$expect('an event is handled', $given->receive('POST', $good['authorization'], $good['body'])[0], 200);
[$status, $headers] = $given->receive('POST', $good['authorization'], $good['body']);
$expect('and once', [$status, count($events)], [401, 1]);
$expect('which the answer says', str_contains($headers['WWW-Authenticate'], 'error_description="replay"'), true);
$expect('the event has an id of its own', $events[0]['id'] !== $events[0]['eventId'], true);
$expect('another method', $given->receive('GET', null, '')[0], 405);
$expect('a long body', $given->receive('POST', $good['authorization'], str_repeat('x', 1048577))[0], 413);

$calls = 0;
$given = $receiver($good, function () use (&$calls): void {
    match (++$calls) {
        1 => throw new Error('no'),
        2 => throw new RetryLater(30),
        default => null,
    };
});
$answers = array_map(fn () => $given->receive('POST', $good['authorization'], $good['body'])[0], range(1, 4));
$expect('an event that was not handled comes again', $answers, [500, 429, 200, 401]);

$pdo = new PDO('sqlite::memory:');
$given = new Receiver($file['issuer'], $file['audience'], $fine, $pdo, null, "$keySets/published", fn () => (int) $good['time']);
$answers = [$given->receive('POST', $good['authorization'], $good['body'])[0]];
$until = $pdo->query("SELECT until_s FROM tidings_receipts WHERE owner <> '' AND id NOT LIKE 'fetch%'")->fetchColumn();
$pdo->exec('DROP TABLE tidings_receipts');
$answers[] = $given->receive('POST', $good['authorization'], $good['body'])[0];
$expect('a store that is away loses nothing', $answers, [200, 503]);
$expect('what was handled is remembered for 96 hours', (int) $until, (int) $good['time'] + 345600);

$now = 1000;
$store = new Store(new PDO('sqlite::memory:'), function () use (&$now) {
    return $now;
});
[, $late] = $store->claim('a', 60);
$expect('a key is claimed once', $store->claim('a', 60)[0], 'in_progress');
$now += 60;
[$status, $owner] = $store->claim('a', 60);
$expect('a claim lapses', $status, 'claimed');
$expect('claims are fenced', [$store->release('a', $late), $store->record('a', $late, 60), $store->record('a', $owner, 60)], [false, false, true]);
$expect('what was recorded stays', $store->claim('a', 60)[0], 'handled');

try {
    new Receiver($file['issuer'], $file['audience'], $fine, new PDO('sqlite::memory:'), []);
    $empty = 'let in';
} catch (ValueError $error) {
    $empty = 'refused';
}
$expect('an empty list of webhooks is refused', $empty, 'refused');

foreach ([301, 3590] as $age) {
    $now = 1000;
    $aging = new Receiver($file['issuer'], $file['audience'], $fine, new PDO('sqlite::memory:'), null, "$keySets/published", function () use (&$now) {
        return $now;
    });
    $kid = $file['keySets']['published']['body']['keys'][0]['kid'];
    $key = new ReflectionMethod($aging, 'key');
    $url = new ReflectionProperty($aging, 'keysUrl');
    $isKnown = fn () => $key->invoke($aging, $kid) !== null;
    $expect('a key is found', $isKnown(), true);
    $keys = (new ReflectionMethod($aging, 'kept'))->invoke($aging)[0];
    $kept = fn () => json_encode(['keys' => $keys, 'boot' => '', 'upFor' => 0]);
    $url->setValue($aging, "$keySets/away");
    $store = (new ReflectionProperty($aging, 'store'))->getValue($aging);
    $store->put("keys $keySets/away", $kept(), 1000);
    $now += $age;
    $expect('old keys serve while the issuer is away', [$isKnown(), $isKnown()], [true, true]);
    $url->setValue($aging, "$keySets/rotated");
    $store->put("keys $keySets/rotated", $kept(), 1000);
    $expect('a revoked key counts no longer after 300 seconds', $isKnown(), false);
    $url->setValue($aging, "$keySets/away");
    $now = 900;
    $store->put("keys $keySets/published", $kept(), 1000);
    $url->setValue($aging, "$keySets/published");
    $expect('nor by a clock that was set back beyond the time of the fetch', [$isKnown(), $store->get("keys $keySets/published")['until_s']], [true, 900]);
    $now = 1000;
    [$boot, $upFor] = (new ReflectionMethod($aging, 'uptime'))->invoke(null);
    if ($boot !== '') {
        $store->put("keys $keySets/rotated", json_encode(['keys' => $keys, 'boot' => $boot, 'upFor' => $upFor - $age]), 990);
        $store->forget("fetch $keySets/rotated");
        $url->setValue($aging, "$keySets/rotated");
        $expect('nor by one that was set back less', $isKnown(), false);
    }
}

echo "$passed passed, $failed failed\n";
exit($failed > 0 ? 1 : 0);
