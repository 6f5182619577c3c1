<?php

// php -S 127.0.0.1:3000 index.php, and in another terminal: npx tidings webhooks create http://127.0.0.1:3000/hooks
// For trying it out: in production, use a database that all processes share.

require __DIR__ . '/TidingsReceiver.php';

$handle = function (array $event): void {
    file_put_contents('php://stderr', $event['eventType'] . ' ' . json_encode($event['payload']) . "\n");
};

(new Tidings\Receiver(
    getenv('ISSUER') ?: 'http://127.0.0.1:4100',
    getenv('AUDIENCE') ?: 'http://127.0.0.1:3000/hooks',
    $handle,
    new PDO('sqlite:' . (getenv('DATABASE') ?: sys_get_temp_dir() . '/tidings-receiver.db')),
))->serve();
