# ruby test.rb KEY_SETS_URL: runs every vector of docs/receivers/vectors.json, whose key sets a server answers at KEY_SETS_URL/NAME.
require 'stringio'
require 'timeout'
require_relative 'tidings_receiver'

FILE = JSON.parse(File.read(File.join(__dir__, '../../docs/receivers/vectors.json')))
KEY_SETS = ARGV.fetch(0)
GOOD = FILE['vectors'].first
$passed = $failed = 0

def expect(name, found, expected)
  return $passed += 1 if found == expected

  $failed += 1
  puts "#{name}: expected #{expected.inspect}, found #{found.inspect}"
end

def receiver(vector = GOOD, **options, &handler)
  TidingsReceiver.new(issuer: FILE['issuer'], audience: FILE['audience'], webhook_ids: vector['webhookIds'],
                      keys_url: "#{KEY_SETS}/#{vector['keySet']}", now: -> { vector['time'] }, logger: Logger.new(nil), **options,
                      &(handler || proc {}))
end

def send_to(receiver, vector = GOOD, method: 'POST', body: nil)
  body ||= vector['body'] || vector['bodyBase64'].unpack1('m')
  receiver.call('REQUEST_METHOD' => method, 'HTTP_AUTHORIZATION' => vector['authorization'], 'rack.input' => StringIO.new(body.b))
end

def code(answer) = JSON.parse(answer[2].join)['error']

FILE['vectors'].each do |vector|
  expect(vector['name'], send_to(receiver(vector), vector)[0], vector['verdict']['status'])
end

events = []
once = receiver { |event| events << event }
expect('an event is handled', send_to(once)[0], 200)
again = send_to(once)
expect('and once', [again[0], again[1]['www-authenticate'], events.length], [401, 'Bearer error="invalid_token", error_description="replay"', 1])
expect('the event has an id of its own', events[0]['id'] == events[0]['eventId'], false)
expect('another method', send_to(once, method: 'GET')[0], 405)
expect('a long body', send_to(once, body: 'x' * 1_048_577)[0], 413)

calls = 0
failing = receiver do
  case calls += 1
  when 1 then raise SystemExit
  when 2 then raise TidingsReceiver::RetryLater, 29.2
  end
end
answers = Array.new(4) { send_to(failing) }
expect('an event that was not handled comes again', answers.map(&:first), [500, 429, 200, 401])
expect('after the pause asked for', answers[1][1]['retry-after'], '30')

done = Queue.new
slow = receiver(timeout: 0.1) { done.pop }
expect('a slow handler is answered for', code(send_to(slow)), 'timeout')
expect('and not run twice', code(send_to(slow)), 'in_progress')
done << true
Timeout.timeout(10) { sleep 0.01 until code(send_to(slow)) == 'replay' }

now = 0
store = TidingsReceiver::MemoryStore.new(max_entries: 2, now: -> { now })
late = store.claim('a', 60)[1]
now = 60
owner = store.claim('a', 60)[1]
expect('claims are fenced', [store.release('a', late), store.record('a', late, 60), store.record('a', owner, 600)], [false, false, true])
%w[b c].each { |key| store.record(key, '', 600) }
expect('the oldest are forgotten', %w[b c].map { |key| store.claim(key, 60)[0] }, %i[handled handled])

clock = 0.0
keys = TidingsReceiver::Keys.new("#{KEY_SETS}/published", logger: Logger.new(nil), now: -> { clock })
kid = FILE['keySets']['published']['body']['keys'][0]['kid']
expect('a key is found', keys.get(kid).nil?, false)
keys.instance_variable_set(:@url, URI("#{KEY_SETS}/empty"))
clock = 3000
refused = begin
  keys.get('stranger')
rescue TidingsReceiver::Refused => e
  e.message
end
expect('an empty set is no set', refused, 'keys_unavailable')
expect('and replaces no good one', keys.get(kid).nil?, false)

puts "#{$passed} passed, #{$failed} failed"
exit($failed.zero?)
