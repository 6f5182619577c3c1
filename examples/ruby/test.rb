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
  given = { webhook_ids: vector['webhookIds'], keys_url: "#{KEY_SETS}/#{vector['keySet']}", now: -> { vector['time'] } }
  TidingsReceiver.new(issuer: FILE['issuer'], audience: FILE['audience'], logger: Logger.new(nil), **given, **options,
                      &(handler || proc {}))
end

def send_to(receiver, vector = GOOD, method: vector['method'] || 'POST', body: nil)
  body ||= (vector['body'] || vector['bodyBase64'].unpack1('m')) + ' ' * (vector['spaces'] || 0)
  receiver.call('REQUEST_METHOD' => method, 'HTTP_AUTHORIZATION' => vector['authorization'], 'rack.input' => StringIO.new(body.b))
end

def code(answer) = JSON.parse(answer[2].join)['error']

FILE['vectors'].each do |vector|
  handled = []
  status = send_to(receiver(vector) { |event| handled << event['id'] }, vector)[0]
  expect(vector['name'], [status, handled], [vector['verdict']['status'], [vector['verdict']['handled']].compact])
end

FILE['sequences'].each do |sequence|
  steps, clock, at, handled, answers = sequence['steps'], 0, nil, {}, []
  take = nil
  given = receiver(GOOD, now: -> { clock }) do |event|
    nth = at
    handled[nth] = event['id']
    take.call(nth + 1) if steps.dig(nth + 1, 'during')
    raise 'no' if steps[nth]['handler'] == 'fails'
  end
  take = lambda do |nth|
    at, clock = nth, steps[nth]['time']
    answer = send_to(given, steps[nth])
    answers[nth] = { 'status' => answer[0], 'code' => answer[2].empty? ? 'ok' : code(answer), 'handled' => handled[nth] }
  end
  steps.each_index { |nth| take.call(nth) unless steps[nth]['during'] }
  expect(sequence['name'], answers, steps.map { |step| step['verdict'] })
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

begun, done, store = Queue.new, Queue.new, TidingsReceiver::MemoryStore.new
handle = proc do
  begun << true
  done.pop
end
expect('a slow handler is answered for', code(send_to(receiver(store: store, timeout: 0.1, &handle))), 'timeout')
Timeout.timeout(10) { begun.pop }
patient = receiver(store: store, &handle)
expect('and not run twice', code(send_to(patient)), 'in_progress')
done << true
Timeout.timeout(10) { sleep 0.01 until code(send_to(patient)) == 'replay' }

now = 0
asked = Class.new do
  attr_reader :times
  attr_accessor :is_away

  def claim(_key, seconds) = is_away ? raise('away') : [:claimed, ((@times ||= []) << seconds).to_s]

  def record(_key, _owner, seconds) = (@times << seconds) && raise('away')
end.new
given = receiver(store: asked)
expect('a claim holds for a minute, what was handled for 96 hours', [send_to(given)[0], asked.times], [200, [60, 345_600]])
asked.is_away = true
expect('a store that is away loses nothing', send_to(given)[0], 503)
no_token = send_to(receiver, GOOD.merge('authorization' => nil))
expect('a request without a token is told the scheme alone', [no_token[0], no_token[1]['www-authenticate']], [401, 'Bearer'])

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
clock = 20.0
refused = begin
  keys.get('stranger')
rescue TidingsReceiver::Refused => e
  e.message
end
expect('an empty set is no set', refused, 'keys_unavailable')
expect('and replaces no good one', keys.get(kid).nil?, false)
[301.0, 3590.0].each do |age|
  clock = 0.0
  keys = TidingsReceiver::Keys.new("#{KEY_SETS}/published", logger: Logger.new(nil), now: -> { clock })
  keys.get(kid)
  keys.instance_variable_set(:@url, URI("#{KEY_SETS}/away"))
  clock = age
  expect('old keys serve while the issuer is away', Array.new(3) { keys.get(kid).nil? }, [false] * 3)
  keys.instance_variable_set(:@url, URI("#{KEY_SETS}/rotated"))
  clock = age + 9
  expect('and it is not asked again for ten seconds', keys.get(kid).nil?, false)
  clock = age + 10
  expect('a revoked key counts no longer after 300 seconds', Array.new(20) { Thread.new { keys.get(kid) } }.map(&:value), [nil] * 20)
end

silent = TCPServer.new('127.0.0.1', 0)
clock = 0.0
keys = TidingsReceiver::Keys.new("#{KEY_SETS}/published", logger: Logger.new(nil), now: -> { clock })
keys.get(kid)
keys.instance_variable_set(:@url, URI("http://127.0.0.1:#{silent.addr[1]}/"))
clock = 20.0
stranger = lambda do |name|
  keys.get(name)
rescue TidingsReceiver::Refused => e
  e.message
end
first = Thread.new { stranger.call('stranger') }
fetch = silent.accept
expect('of strangers that wait for a fetch there is one', [stranger.call('another'), first.alive?], ['keys_unavailable', true])
expect('and a key that is known waits for none', [keys.get(kid).nil?, first.alive?], [false, true])
fetch.close

empty = begin
  receiver(webhook_ids: [])
rescue ArgumentError => e
  e.message
end
expect('an empty list of webhooks is refused', empty, 'webhook_ids is empty, and would let in none; leave it out to let in all')

log = StringIO.new
$stderr = log
TidingsReceiver.new(issuer: FILE['issuer'], audience: FILE['audience']) {}.receive('POST', 'Bearer a.b.c', '{}')
$stderr = STDERR
expect('what strangers send fills no log', log.string, '')

puts "#{$passed} passed, #{$failed} failed"
exit($failed.zero?)
