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
$body = fn (array $vector) => $vector['body'] ?? base64_decode($vector['bodyBase64']);
$fine = function (array $event): void {
};

foreach ($file['vectors'] as $vector) {
    [$status] = $receiver($vector, $fine)->receive('POST', $vector['authorization'], $body($vector));
    $expect($vector['name'], $status, $vector['verdict']['status']);
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

echo "$passed passed, $failed failed\n";
exit($failed > 0 ? 1 : 0);
