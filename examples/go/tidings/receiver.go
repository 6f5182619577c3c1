// Package tidings receives deliveries of Tidings: it verifies them, handles each once, and answers in time. One file to copy; it
// needs only the standard library. docs/receivers/README.md explains what it does, and why.
//
//	receiver, err := tidings.NewReceiver(tidings.Options{Issuer: "https://tidings.example.com", Audience: "https://example.com/hooks", Handler: handle})
//	http.Handle("/hooks", receiver)
package tidings

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

const (
	maxBody        = 1 << 20
	maxDiscarded   = 8 << 20
	maxToken       = 16_384
	lifetime       = 300.0
	tolerance      = 60.0
	claimFor       = time.Minute
	rememberFor    = 96 * time.Hour
	handlerTimeout = 14 * time.Second
)

// Event is the content of a delivery. EventID is the delivery's id, ID the event's own: the same for all redeliveries and recoveries.
type Event struct {
	ID, WebhookID, EventID, EventType, EventTime string
	Payload                                      json.RawMessage
}

// RetryLater is returned by a handler: the delivery is answered 429, and the webhook receives nothing for that time, at most 24 h.
type RetryLater struct{ After time.Duration }

func (r RetryLater) Error() string { return fmt.Sprintf("not now: again in %v", r.After) }

// Store remembers what was handled. A claim has an owner: only the owner may record or release it, and may record an expired claim that
// nobody else has taken. The processes of one endpoint share a store.
type Store interface {
	// Claim answers "claimed" with an owner, "in_progress" or "handled".
	Claim(key string, hold time.Duration) (status, owner string, err error)
	Record(key, owner string, keep time.Duration) (bool, error)
	Release(key, owner string) (bool, error)
}

// Options of a receiver. Issuer, Audience and Handler are required.
type Options struct {
	Issuer, Audience string
	// Handler handles an event. If it returns nil, the event is handled; otherwise it comes again. The context ends when the
	// request is answered 503 because time is up; the handler still counts if it succeeds later.
	Handler func(context.Context, Event) error
	// WebhookIDs are the ids of your own webhooks: others may register one for your URL. Not checked if nil.
	WebhookIDs []string
	// KeysURL is where the issuer publishes its keys, if not at its /.well-known/jwks.json.
	KeysURL string
	Store   Store
	Now     func() time.Time
	// Timeout is the time until a 503, 14 s by default: the service waits 15.
	Timeout time.Duration
	// OnRefused gets the reason why a request was not answered 200.
	OnRefused func(code string, eventID string)
}

// Receiver is an http.Handler. Mount it at the path of the webhook.
type Receiver struct {
	options Options
	keys    *keys
}

// NewReceiver checks the options.
func NewReceiver(options Options) (*Receiver, error) {
	for name, value := range map[string]string{"Issuer": options.Issuer, "Audience": options.Audience} {
		if parsed, err := url.Parse(value); err != nil || parsed.Host == "" {
			return nil, fmt.Errorf("%s is %q; it should be a URL", name, value)
		}
	}
	if options.Handler == nil {
		return nil, errors.New("there is no Handler")
	}
	if options.WebhookIDs != nil && len(options.WebhookIDs) == 0 {
		return nil, errors.New("WebhookIDs is empty, and would let in none; leave it nil to let in all")
	}
	if options.KeysURL == "" {
		options.KeysURL = strings.TrimSuffix(options.Issuer, "/") + "/.well-known/jwks.json"
	}
	if options.Store == nil {
		options.Store = NewMemoryStore(100_000)
	}
	if options.Now == nil {
		options.Now = time.Now
	}
	if options.Timeout == 0 {
		options.Timeout = handlerTimeout
	}
	return &Receiver{options, newKeys(options.KeysURL)}, nil
}

// refusal is the reason why a request is not answered 200.
type refusal struct {
	code       string
	retryAfter time.Duration
	cause      error
}

func (r *refusal) Error() string { return r.code }

func refuse(code string) error { return &refusal{code: code} }

func (r *refusal) status() int {
	switch r.code {
	case "method":
		return 405
	case "body_too_large":
		return 413
	case "retry_later":
		return 429
	case "body", "handler_failed":
		return 500
	case "body_incomplete", "in_progress", "timeout", "keys_unavailable", "replay_store_unavailable":
		return 503
	}
	return 401
}

func (r *Receiver) ServeHTTP(response http.ResponseWriter, request *http.Request) {
	deadline := time.Now().Add(r.options.Timeout)
	body, bodyErr := readBody(request.Body)
	var event Event
	err := func() error {
		if request.Method != http.MethodPost {
			return refuse("method")
		}
		token := bearer.FindStringSubmatch(request.Header.Get("Authorization"))
		if token == nil {
			return refuse("token_missing")
		}
		if bodyErr != nil {
			return bodyErr
		}
		var err error
		if event, err = r.verify(strings.TrimRight(token[1], " \t"), body); err != nil {
			return err
		}
		return r.handleInTime(event, deadline)
	}()
	if err == nil {
		response.WriteHeader(http.StatusOK)
		return
	}
	r.answer(response, err, event.EventID)
}

var bearer = regexp.MustCompile(`(?is)^Bearer +(\S.*)$`)

func (r *Receiver) answer(response http.ResponseWriter, err error, eventID string) {
	refused := &refusal{code: "handler_failed", cause: err}
	errors.As(err, &refused)
	// A failed fetch is logged once, and not for each token that strangers send.
	if refused.cause != nil && refused.code != "keys_unavailable" {
		log.Printf("tidings: event %q: %s: %v", eventID, refused.code, refused.cause)
	}
	if r.options.OnRefused != nil {
		r.options.OnRefused(refused.code, eventID)
	}
	header := response.Header()
	header.Set("Content-Type", "application/json")
	switch {
	case refused.code == "token_missing":
		header.Set("WWW-Authenticate", "Bearer")
	case refused.status() == 401:
		header.Set("WWW-Authenticate", fmt.Sprintf(`Bearer error="invalid_token", error_description=%q`, refused.code))
	case refused.code == "method":
		header.Set("Allow", "POST")
	case refused.code == "body_too_large":
		header.Set("Connection", "close")
	case refused.code == "retry_later":
		header.Set("Retry-After", fmt.Sprint(int(math.Ceil(refused.retryAfter.Seconds()))))
	}
	response.WriteHeader(refused.status())
	fmt.Fprintf(response, `{"error":%q}`, refused.code)
}

// readBody reads the body before the answer: a connection with unread bytes can carry no further request.
func readBody(from io.Reader) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(from, maxBody+1))
	if err != nil {
		return nil, refuse("body_incomplete")
	}
	if len(body) > maxBody {
		io.CopyN(io.Discard, from, maxDiscarded)
		return nil, refuse("body_too_large")
	}
	return body, nil
}

// verify makes the checks, in this order. Nothing in the token is trusted before its signature is verified.
func (r *Receiver) verify(token string, body []byte) (Event, error) {
	header, claims, err := readToken(token)
	if err != nil {
		return Event{}, refuse("format")
	}
	if header["alg"] != "EdDSA" {
		return Event{}, refuse("algorithm")
	}
	kid, _ := header["kid"].(string)
	key, err := r.keys.get(kid)
	if err != nil {
		return Event{}, &refusal{code: "keys_unavailable", cause: err}
	}
	if key == nil {
		return Event{}, refuse("key")
	}
	dot := strings.LastIndexByte(token, '.')
	signature, ok := fromBase64url(token[dot+1:])
	if !ok || len(signature) != ed25519.SignatureSize || !ed25519.Verify(key, []byte(token[:dot]), signature) {
		return Event{}, refuse("signature")
	}
	return r.checkClaims(claims, body)
}

var (
	base64url = regexp.MustCompile(`^[A-Za-z0-9_-]*$`)
	jwtType   = regexp.MustCompile(`(?i)^(application/)?jwt$`)
)

func readToken(token string) (header, claims map[string]any, err error) {
	parts := strings.Split(token, ".")
	if len(token) > maxToken || len(parts) != 3 || !base64url.MatchString(parts[2]) {
		return nil, nil, errors.New("no JWT")
	}
	for i, content := range []*map[string]any{&header, &claims} {
		raw, ok := fromBase64url(parts[i])
		if !ok {
			return nil, nil, errors.New("no base64url")
		}
		if *content, err = object(raw, true); err != nil {
			return nil, nil, err
		}
	}
	_, hasCrit := header["crit"]
	_, hasB64 := header["b64"]
	typ, hasTyp := header["typ"]
	text, _ := typ.(string)
	if hasCrit || hasB64 || hasTyp && !jwtType.MatchString(text) {
		return nil, nil, errors.New("no delivery token")
	}
	return header, claims, nil
}

func (r *Receiver) checkClaims(claims map[string]any, body []byte) (Event, error) {
	now := float64(r.options.Now().UnixNano()) / 1e9
	if claims["iss"] != r.options.Issuer {
		return Event{}, refuse("issuer")
	}
	if claims["aud"] != r.options.Audience {
		return Event{}, refuse("audience")
	}
	exp, hasExp := timeIn(claims, "exp")
	iat, hasIat := timeIn(claims, "iat")
	if !hasExp || now >= exp || hasIat && (exp <= iat || exp-iat > lifetime) {
		return Event{}, refuse("expiry")
	}
	said, err := object(body, false)
	jti, _ := claims["jti"].(string)
	if err != nil || jti == "" || said["eventId"] != jti {
		return Event{}, refuse("jti")
	}
	// A token of an older server has no such claim.
	if claimed, has := claims["body_sha256"]; has {
		digest := sha256.Sum256(body)
		if claimed != base64.RawURLEncoding.EncodeToString(digest[:]) {
			return Event{}, refuse("body_digest")
		}
	}
	if r.options.WebhookIDs != nil && !contains(r.options.WebhookIDs, said["webhookId"]) {
		return Event{}, refuse("webhook")
	}
	notBefore := iat
	if _, has := claims["nbf"]; has {
		nbf, isTime := timeIn(claims, "nbf")
		hasIat, notBefore = hasIat && isTime, math.Max(iat, nbf)
	}
	if !hasIat || notBefore > now+tolerance {
		return Event{}, refuse("issued_at")
	}
	return eventOf(said, claims, body)
}

// eventOf refuses a signed event that this receiver does not know with 5XX, so that nothing is lost.
func eventOf(said, claims map[string]any, body []byte) (Event, error) {
	var raw struct{ Payload json.RawMessage }
	_, isObject := said["payload"].(map[string]any)
	if !isObject || json.Unmarshal(body, &raw) != nil {
		return Event{}, refuse("body")
	}
	event := Event{Payload: raw.Payload}
	for name, field := range map[string]*string{
		"webhookId": &event.WebhookID, "eventId": &event.EventID, "eventType": &event.EventType, "eventTime": &event.EventTime,
	} {
		text, ok := said[name].(string)
		if !ok {
			return Event{}, refuse("body")
		}
		*field = text
	}
	if event.ID, _ = claims["sub"].(string); event.ID == "" {
		event.ID = event.EventID
	}
	return event, nil
}

func contains(list []string, value any) bool {
	for _, each := range list {
		if value == any(each) {
			return true
		}
	}
	return false
}

// timeIn is a NumericDate (RFC 7519 section 2).
func timeIn(claims map[string]any, name string) (float64, bool) {
	value, ok := claims[name].(float64)
	return value, ok && math.Abs(value) <= 8.64e12
}

// object is a JSON object in UTF-8; if strict, without duplicate names.
func object(raw []byte, strict bool) (map[string]any, error) {
	if !utf8.Valid(raw) {
		return nil, errors.New("no UTF-8")
	}
	var content map[string]any
	if err := json.Unmarshal(raw, &content); err != nil || content == nil {
		return nil, errors.New("no JSON object")
	}
	if !strict {
		return content, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.Token()
	names := map[string]bool{}
	for decoder.More() {
		name, err := decoder.Token()
		if err != nil || names[name.(string)] {
			return nil, errors.New("a name twice")
		}
		names[name.(string)] = true
		var skipped json.RawMessage
		if err := decoder.Decode(&skipped); err != nil {
			return nil, err
		}
	}
	return content, nil
}

// fromBase64url reads canonical base64url: no padding, and no unused bits set.
func fromBase64url(text string) ([]byte, bool) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	return raw, err == nil && base64url.MatchString(text)
}

// handleInTime answers 503 if the handler is too slow, and lets it end.
func (r *Receiver) handleInTime(event Event, deadline time.Time) error {
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	done := make(chan error, 1)
	go func() {
		defer cancel()
		done <- r.handleOnce(ctx, event)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		select {
		case err := <-done: // it ended in this very moment
			return err
		default:
			return refuse("timeout")
		}
	}
}

func (r *Receiver) handleOnce(ctx context.Context, event Event) error {
	store := r.options.Store
	status, owner, err := store.Claim(event.EventID, claimFor)
	if err != nil {
		return &refusal{code: "replay_store_unavailable", cause: err}
	}
	switch status {
	case "handled":
		return refuse("replay")
	case "in_progress":
		return refuse("in_progress")
	}
	if event.EventType != "ping" {
		err = r.call(ctx, event)
	}
	if err == nil {
		// The outcome of the event stands, even if the store could not record it.
		if _, failed := store.Record(event.EventID, owner, rememberFor); failed != nil {
			log.Printf("tidings: event %q was handled, and could not be recorded: %v", event.EventID, failed)
		}
		return nil
	}
	if _, failed := store.Release(event.EventID, owner); failed != nil {
		log.Printf("tidings: event %q could not be released: %v", event.EventID, failed)
	}
	var later RetryLater
	if errors.As(err, &later) && later.After >= 0 && later.After <= 24*time.Hour {
		return &refusal{code: "retry_later", retryAfter: later.After}
	}
	return &refusal{code: "handler_failed", cause: err}
}

// call turns a panic of the handler into an error: in its goroutine a panic would end the process.
func (r *Receiver) call(ctx context.Context, event Event) (err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			err = fmt.Errorf("the handler panicked: %v", panicked)
		}
	}()
	return r.options.Handler(ctx, event)
}

const (
	refreshAfter = 240 * time.Second
	freshFor     = 300 * time.Second
	staleAfter   = time.Hour
	leastBetween = 10 * time.Second
	fetchTimeout = 5 * time.Second
	maxKeys      = 256 << 10
)

// keys are the issuer's: fetched when first needed, in the background before they expire, and for an unknown kid. A known key waits
// for a fetch only when the keys are older than 300 s: it may have been revoked. If that fails, it serves for an hour. At most one
// request is under way. Ages are by the monotonic clock.
type keys struct {
	url       string
	client    http.Client
	lock      sync.Mutex
	known     map[string]ed25519.PublicKey
	fetchedAt time.Time
	failedAt  time.Time
	failure   error
	underWay  chan struct{}
}

func newKeys(url string) *keys {
	return &keys{url: url, client: http.Client{
		Timeout:       fetchTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// get returns nil if the issuer has no such key.
func (k *keys) get(kid string) (ed25519.PublicKey, error) {
	k.lock.Lock()
	key, age := k.known[kid], time.Since(k.fetchedAt)
	if key != nil && age < refreshAfter || key == nil && age < leastBetween {
		k.lock.Unlock()
		return key, nil
	}
	if k.underWay == nil {
		if time.Since(k.failedAt) < leastBetween {
			defer k.lock.Unlock()
			if key != nil && age < staleAfter {
				return key, nil
			}
			return nil, k.failure
		}
		k.underWay = make(chan struct{})
		go k.fetch(k.underWay)
	}
	done := k.underWay
	k.lock.Unlock()
	if key != nil && age < freshFor {
		return key, nil
	}
	<-done
	k.lock.Lock()
	defer k.lock.Unlock()
	if k.failure != nil {
		if key != nil && age < staleAfter {
			return key, nil
		}
		return nil, k.failure
	}
	return k.known[kid], nil
}

func (k *keys) fetch(done chan struct{}) {
	startedAt := time.Now()
	known, err := k.read()
	k.lock.Lock()
	defer k.lock.Unlock()
	if k.failure = err; err != nil {
		k.failedAt = time.Now()
		log.Printf("tidings: the issuer's keys could not be had: %v", err)
	} else {
		k.known, k.fetchedAt = known, startedAt
	}
	k.underWay = nil
	close(done)
}

// read fetches the set. An empty or unreadable set is an error, and replaces no good one.
func (k *keys) read() (map[string]ed25519.PublicKey, error) {
	response, err := k.client.Get(k.url)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answered %d, not 200", k.url, response.StatusCode)
	}
	raw, err := io.ReadAll(io.LimitReader(response.Body, maxKeys+1))
	if err != nil {
		return nil, err
	}
	if len(raw) > maxKeys {
		return nil, fmt.Errorf("%s is longer than 256 KiB", k.url)
	}
	set, err := object(raw, false)
	if err != nil {
		return nil, err
	}
	listed, _ := set["keys"].([]any)
	known := map[string]ed25519.PublicKey{}
	for _, each := range listed {
		key, _ := each.(map[string]any)
		kid, isNamed := key["kid"].(string)
		text, _ := key["x"].(string)
		x, ok := fromBase64url(text)
		if isNamed && ok && key["kty"] == "OKP" && key["crv"] == "Ed25519" && len(x) == ed25519.PublicKeySize && known[kid] == nil {
			known[kid] = x
		}
	}
	if len(known) == 0 {
		return nil, fmt.Errorf("%s has no Ed25519 key in it", k.url)
	}
	return known, nil
}

type entry struct {
	owner   string
	handled bool
	until   time.Time
}

type memoryStore struct {
	lock    sync.Mutex
	most    int
	entries map[string]entry
	order   []string
	now     func() time.Time
}

// NewMemoryStore remembers that many events in this process.
func NewMemoryStore(most int) Store {
	return &memoryStore{most: most, entries: map[string]entry{}, now: time.Now}
}

func (s *memoryStore) inForce(key string) (entry, bool) {
	found, has := s.entries[key]
	return found, has && found.until.After(s.now())
}

func (s *memoryStore) Claim(key string, hold time.Duration) (string, string, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	if before, has := s.inForce(key); has {
		if before.handled {
			return "handled", "", nil
		}
		return "in_progress", "", nil
	}
	var random [16]byte
	rand.Read(random[:])
	owner := hex.EncodeToString(random[:])
	s.put(key, entry{owner, false, s.now().Add(hold)})
	return "claimed", owner, nil
}

func (s *memoryStore) Record(key, owner string, keep time.Duration) (bool, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	if before, has := s.inForce(key); has && (before.handled || before.owner != owner) {
		return false, nil
	}
	s.put(key, entry{owner, true, s.now().Add(keep)})
	return true, nil
}

func (s *memoryStore) Release(key, owner string) (bool, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	if before, has := s.inForce(key); !has || before.handled || before.owner != owner {
		return false, nil
	}
	// The entry keeps its place in the order.
	s.entries[key] = entry{}
	return true, nil
}

// put drops the oldest entries beyond the maximum.
func (s *memoryStore) put(key string, value entry) {
	if _, has := s.entries[key]; !has {
		s.order = append(s.order, key)
	}
	s.entries[key] = value
	for len(s.order) > s.most {
		delete(s.entries, s.order[0])
		s.order = s.order[1:]
	}
}
