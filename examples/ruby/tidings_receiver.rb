# frozen_string_literal: true

# Receives deliveries of Tidings: verifies them, handles each once, and answers in time. One file to copy; it needs only Ruby 3.0 or newer
# with OpenSSL 1.1.1 or newer. It is a Rack application:
#
#     receiver = TidingsReceiver.new(issuer: 'https://tidings.example.com', audience: 'https://example.com/hooks') { |event| handle(event) }
#     map('/hooks') { run receiver }           # config.ru
#     mount receiver => '/hooks'               # Rails
#
# docs/receivers/README.md explains what it does, and why.

require 'digest'
require 'json'
require 'logger'
require 'net/http'
require 'openssl'
require 'securerandom'
require 'uri'

class TidingsReceiver
  MAX_BODY = 1_048_576
  MAX_TOKEN = 16_384
  LIFETIME = 300
  TOLERANCE = 60
  CLAIM = 60
  HANDLED = 96 * 3600
  STATUSES = {
    'method' => 405, 'body_too_large' => 413, 'retry_later' => 429, 'body' => 500, 'handler_failed' => 500,
    'body_incomplete' => 503, 'in_progress' => 503, 'timeout' => 503, 'keys_unavailable' => 503, 'replay_store_unavailable' => 503
  }.freeze # all others are checks of the token: 401

  # Why a request is not answered 200.
  class Refused < StandardError
    attr_reader :retry_after

    def initialize(code, retry_after: nil)
      super(code)
      @retry_after = retry_after
    end

    def status = STATUSES.fetch(message, 401)

    def answer
      headers = { 'content-type' => 'application/json' }
      headers['www-authenticate'] = challenge if status == 401
      headers['allow'] = 'POST' if message == 'method'
      headers['connection'] = 'close' if message == 'body_too_large'
      headers['retry-after'] = retry_after.to_s if retry_after
      [status, headers, [JSON.generate(error: message)]]
    end

    def challenge = message == 'token_missing' ? 'Bearer' : %(Bearer error="invalid_token", error_description="#{message}")
  end

  # Raised by a handler: the delivery is answered 429, and the webhook receives nothing for that many seconds.
  class RetryLater < StandardError
    attr_reader :seconds

    def initialize(seconds)
      raise ArgumentError, "#{seconds.inspect} is no number of seconds from 0 to 86400" unless seconds.is_a?(Numeric) && seconds.between?(0, 86_400)

      super("again in #{seconds} s")
      @seconds = seconds.ceil
    end
  end

  # The block gets the body as a Hash, with the event's own id in 'id'; if it raises, the event comes again.
  # webhook_ids: the ids of your own webhooks, since others may register one for your URL. keys_url: where the issuer publishes its
  # keys, if not at its /.well-known/jwks.json. timeout: seconds until it answers 503; the service waits 15.
  def initialize(issuer:, audience:, webhook_ids: nil, keys_url: nil, store: MemoryStore.new, now: -> { Time.now.to_f }, timeout: 14,
                 logger: Logger.new($stderr, level: :info), &handler)
    { issuer: issuer, audience: audience }.each do |name, value|
      raise ArgumentError, "#{name} is #{value.inspect}; it should be a URL" unless value.is_a?(String) && value.match?(%r{\Ahttps?://.})
    end
    raise ArgumentError, 'there is no block that handles events' unless handler
    raise ArgumentError, 'webhook_ids is empty, and would let in none; leave it out to let in all' if webhook_ids && Array(webhook_ids).empty?

    @issuer, @audience, @handler, @store, @now, @timeout, @logger = issuer, audience, handler, store, now, timeout, logger
    @webhook_ids = webhook_ids && Array(webhook_ids)
    @keys = Keys.new(keys_url || "#{issuer.delete_suffix('/')}/.well-known/jwks.json", logger: logger)
  end

  # Rack.
  def call(env)
    since = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    receive(env['REQUEST_METHOD'], env['HTTP_AUTHORIZATION'], read(env['rack.input']), since: since)
  end

  # Status, headers and body of the answer. Never raises. `body` is nil if it is longer than 1 MiB; the timeout counts from `since`.
  def receive(method, authorization, body, since: Process.clock_gettime(Process::CLOCK_MONOTONIC))
    raise Refused, 'method' unless method == 'POST'

    token = authorization.to_s[/\ABearer +(\S.*)\z/im, 1] or raise Refused, 'token_missing'
    raise Refused, 'body_too_large' if body.nil?

    event = verify(token.rstrip, body.b)
    handle_in_time(event, since + @timeout)
    [200, {}, []]
  rescue Refused => e
    @logger.debug("tidings: refused: #{e.message}")
    e.answer
  rescue Exception => e # rubocop:disable Lint/RescueException
    @logger.error("tidings: #{e.class}: #{e.message}")
    Refused.new('handler_failed').answer
  end

  private

  def read(input)
    return '' if input.nil?

    body = input.read(MAX_BODY + 1) || ''
    return body if body.bytesize <= MAX_BODY

    8.times { break unless input.read(MAX_BODY) }
    nil
  end

  # The checks, in this order. Nothing in the token is trusted before its signature is verified.
  def verify(token, body)
    header, claims, signature = read_token(token)
    raise Refused, 'algorithm' unless header['alg'] == 'EdDSA'

    kid = header['kid']
    key = @keys.get(kid.is_a?(String) ? kid : nil) or raise Refused, 'key'
    signed = token.rpartition('.').first
    raw = self.class.from_base64url(signature)
    raise Refused, 'signature' unless raw && raw.bytesize == 64 && valid?(key, raw, signed)

    check_claims(claims, body)
  end

  def valid?(key, signature, data)
    key.verify(nil, signature, data)
  rescue OpenSSL::PKey::PKeyError
    false
  end

  def read_token(token)
    parts = token.split('.', -1)
    raise Refused, 'format' if token.length > MAX_TOKEN || parts.length != 3 || !parts[2].match?(/\A[\w-]*\z/)

    header, claims = parts.first(2).map { |part| self.class.object(self.class.from_base64url(part) || '', strict: true) }
    raise Refused, 'format' if header.nil? || claims.nil? || header.key?('crit') || header.key?('b64')

    typ = header.fetch('typ', 'JWT')
    raise Refused, 'format' unless typ.is_a?(String) && typ.match?(%r{\A(application/)?jwt\z}i)

    [header, claims, parts[2]]
  end

  def check_claims(claims, body)
    now = @now.call
    raise Refused, 'issuer' unless claims['iss'] == @issuer
    raise Refused, 'audience' unless claims['aud'] == @audience

    exp, iat = time_in(claims, 'exp'), time_in(claims, 'iat')
    raise Refused, 'expiry' if exp.nil? || now >= exp || (iat && (exp <= iat || exp - iat > LIFETIME))

    event, jti = self.class.object(body), claims['jti']
    raise Refused, 'jti' unless jti.is_a?(String) && !jti.empty? && event && event['eventId'] == jti

    # A token of an older server has no such claim.
    raise Refused, 'body_digest' if claims.key?('body_sha256') && claims['body_sha256'] != self.class.to_base64url(Digest::SHA256.digest(body))
    raise Refused, 'webhook' if @webhook_ids && !@webhook_ids.include?(event['webhookId'])

    nbf = claims.key?('nbf') ? time_in(claims, 'nbf') : iat
    raise Refused, 'issued_at' if iat.nil? || nbf.nil? || [iat, nbf].max > now + TOLERANCE

    # Signed, but unknown to this receiver: 5XX, so that nothing is lost.
    known = %w[webhookId eventType eventTime].all? { |name| event[name].is_a?(String) } && event['payload'].is_a?(Hash)
    raise Refused, 'body' unless known

    sub = claims['sub']
    event.merge('id' => sub.is_a?(String) && !sub.empty? ? sub : jti)
  end

  def time_in(claims, name)
    value = claims[name]
    value if (value.is_a?(Integer) || value.is_a?(Float)) && value.abs <= 8.64e12
  end

  # If a handler is too slow, the receiver answers 503; the handler still counts if it succeeds later.
  def handle_in_time(event, deadline)
    work = Thread.new { handle_once(event) }
    work.report_on_exception = false
    raise Refused, 'timeout' unless work.join([deadline - Process.clock_gettime(Process::CLOCK_MONOTONIC), 0].max)
  end

  def handle_once(event)
    key = event['eventId']
    begin
      status, owner = @store.claim(key, CLAIM)
    rescue StandardError => e
      @logger.error("tidings: the replay store: #{e.message}")
      raise Refused, 'replay_store_unavailable'
    end
    raise Refused, status == :handled ? 'replay' : 'in_progress' unless status == :claimed

    begin
      @handler.call(event) unless event['eventType'] == 'ping'
    rescue Exception => e # rubocop:disable Lint/RescueException
      settle { @store.release(key, owner) }
      raise Refused.new('retry_later', retry_after: e.seconds) if e.is_a?(RetryLater)

      @logger.error("tidings: event #{key} could not be handled: #{e.class}: #{e.message}")
      raise Refused, 'handler_failed'
    end
    settle { @store.record(key, owner, HANDLED) }
  end

  # The outcome of the event stands, even if the store could not record it.
  def settle
    yield
  rescue StandardError => e
    @logger.error("tidings: the replay store: #{e.message}")
  end

  JSON_TEXT = %r{"(?:[^"\\]|\\(?:["\\/bfnrt]|u\h{4}))*"}
  private_constant :JSON_TEXT

  class << self
    # The bytes of canonical base64url.
    def from_base64url(text)
      return unless text.is_a?(String) && text.match?(/\A[\w-]*\z/)

      raw = (text.tr('-_', '+/') + '=' * (-text.length % 4)).unpack1('m0')
      raw if to_base64url(raw) == text
    rescue ArgumentError
      nil
    end

    def to_base64url(raw) = [raw].pack('m0').tr('+/', '-_').delete('=')

    # A JSON object in UTF-8; if strict, without duplicate names.
    def object(raw, strict: false)
      text = raw.dup.force_encoding(Encoding::UTF_8)
      return unless text.valid_encoding? && text.match?(/\A[ \t\r\n]*\{/)
      return if text.gsub(JSON_TEXT, '').match?(%r{["/]}) # the parser takes comments, and any letter as an escape

      content = JSON.parse(text, max_nesting: 100)
      content if content.is_a?(Hash) && (!strict || count_names(text) == content.length)
    rescue JSON::ParserError, JSON::NestingError
      nil
    end

    private

    # The number of names of the outermost object, duplicates included.
    def count_names(json)
      depth = 0
      json.scan(/"(?:[^"\\]|\\.)*"\s*:?|[\[\]{}]/m).count do |token|
        depth += { '{' => 1, '[' => 1, '}' => -1, ']' => -1 }.fetch(token, 0)
        depth == 1 && token.start_with?('"') && token.end_with?(':')
      end
    end
  end

  # The issuer's keys: fetched when first needed, in the background before they expire, and for an unknown kid. A known key waits for
  # a fetch only when the keys are older than 300 s: it may have been revoked. If that fails, it serves for an hour. At most one
  # request is under way.
  class Keys
    REFRESH_AFTER = 240
    FRESH = 300
    STALE = 3600
    LEAST_BETWEEN = 10
    TIMEOUT = 5
    MAX_BYTES = 262_144
    # What comes before the 32 bytes of a key in its DER form (RFC 8410).
    SPKI = ['302a300506032b6570032100'].pack('H*').freeze

    def initialize(url, logger:, now: -> { Process.clock_gettime(Process::CLOCK_MONOTONIC) })
      @url, @logger, @now, @lock = URI(url), logger, now, Mutex.new
      @set = [{}, -Float::INFINITY] # the keys, and when they were fetched: replaced as one
      @failed_at = -Float::INFINITY
    end

    # The public key of a kid; nil if the issuer has none. Raises Refused if the keys cannot be fetched.
    def get(kid)
      keys, fetched_at = @set
      age = @now.call - fetched_at
      is_known = keys.key?(kid)
      if age >= (is_known ? REFRESH_AFTER : LEAST_BETWEEN)
        fetch, is_own = refresh
        return keys[kid] if is_known && age < FRESH
        raise Refused, 'keys_unavailable' if !is_known && !keys.empty? && !is_own # one stranger may wait, and not all threads

        is_done = fetch&.join(TIMEOUT) && fetch.value
        raise Refused, 'keys_unavailable' if !is_done && (!is_known || age > STALE)
      end
      @set[0][kid]
    end

    private

    # The thread that fetches the keys, and whether the caller has begun it; nil for a moment after a failed one.
    def refresh
      @lock.synchronize do
        return @under_way if @under_way&.alive? && @now.call - @started_at < 2 * TIMEOUT
        return if @now.call - @failed_at < LEAST_BETWEEN

        @started_at = @now.call
        [@under_way = Thread.new { fetch(@started_at) }, true]
      end
    end

    def fetch(started_at)
      @set = [usable(read), started_at]
      true
    rescue StandardError => e
      @failed_at = @now.call
      @logger.warn("tidings: the issuer's keys at #{@url} could not be had: #{e.message}")
      false
    end

    def read
      deadline = @now.call + TIMEOUT
      options = { use_ssl: @url.scheme == 'https', open_timeout: TIMEOUT, read_timeout: TIMEOUT, max_retries: 0 }
      Net::HTTP.start(@url.hostname, @url.port, **options) do |http|
        http.request_get(@url.request_uri, 'Accept' => 'application/json') do |response|
          raise "answered #{response.code}, not 200" unless response.code == '200'

          body = +''
          response.read_body do |part|
            body << part
            raise 'longer than 256 KiB, or not whole in time' if body.bytesize > MAX_BYTES || @now.call > deadline
          end
          return body
        end
      end
    end

    def usable(body)
      listed = TidingsReceiver.object(body)&.fetch('keys', nil)
      keys = (listed.is_a?(Array) ? listed : []).grep(Hash).reverse.filter_map do |key|
        next unless key['kty'] == 'OKP' && key['crv'] == 'Ed25519' && key['kid'].is_a?(String)

        raw = TidingsReceiver.from_base64url(key['x'])
        [key['kid'], OpenSSL::PKey.read(SPKI + raw)] if raw && raw.bytesize == 32
      end
      raise 'no Ed25519 key in it' if keys.empty?

      keys.to_h
    end
  end

  # Remembers what was handled, in this process. Several processes need a shared store with these methods. A claim has an owner: only the
  # owner may record or release it, and may record an expired claim that nobody else has taken.
  class MemoryStore
    Entry = Struct.new(:owner, :is_handled, :until)

    def initialize(max_entries: 100_000, now: -> { Time.now.to_f })
      @entries, @max_entries, @now, @lock = {}, max_entries, now, Mutex.new
    end

    # :claimed and its owner, :in_progress or :handled.
    def claim(key, seconds)
      @lock.synchronize do
        before = in_force(key)
        next [before.is_handled ? :handled : :in_progress, nil] if before

        owner = SecureRandom.uuid
        put(key, Entry.new(owner, false, @now.call + seconds))
        [:claimed, owner]
      end
    end

    def record(key, owner, seconds)
      @lock.synchronize do
        before = in_force(key)
        next false if before && (before.is_handled || before.owner != owner)

        put(key, Entry.new(owner, true, @now.call + seconds))
        true
      end
    end

    def release(key, owner)
      @lock.synchronize do
        before = in_force(key)
        next false if before.nil? || before.is_handled || before.owner != owner

        @entries.delete(key)
        true
      end
    end

    private

    def in_force(key)
      entry = @entries[key]
      entry if entry && entry.until > @now.call
    end

    def put(key, entry)
      @entries.delete(key)
      @entries[key] = entry
      @entries.shift while @entries.size > @max_entries
    end
  end
end
