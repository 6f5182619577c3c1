package tidings

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"
)

type vector struct {
	Name, Method, Body, BodyBase64, KeySet string
	Spaces                                 int
	Authorization                          *string
	WebhookIds                             []string
	Time                                   float64
	Verdict                                struct {
		Status  int
		Code    string
		Handled *string
	}
	// Of the steps of a sequence.
	Handler string
	During  bool
}

var file struct {
	Issuer, Audience string
	KeySets          map[string]struct {
		Status int
		Body   json.RawMessage
	}
	Vectors   []vector
	Sequences []struct {
		Name  string
		Steps []vector
	}
}

func init() {
	raw, err := os.ReadFile("../../../docs/receivers/vectors.json")
	if err == nil {
		err = json.Unmarshal(raw, &file)
	}
	if err != nil {
		panic(err)
	}
}

// keySets answers as each key set does, at its name.
func keySets(t *testing.T) *httptest.Server {
	server := httptest.NewServer(http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		name := strings.TrimPrefix(request.URL.Path, "/")
		set := file.KeySets[name]
		response.Header().Set("Location", "/published")
		response.WriteHeader(set.Status)
		var text string
		if json.Unmarshal(set.Body, &text) != nil {
			text = string(set.Body)
		}
		response.Write([]byte(text))
		if name == "huge" {
			response.Write(bytes.Repeat([]byte(" "), 256<<10))
		}
	}))
	t.Cleanup(server.Close)
	return server
}

func (v vector) request() *http.Request {
	body := []byte(v.Body)
	if v.BodyBase64 != "" {
		body, _ = base64.StdEncoding.DecodeString(v.BodyBase64)
	}
	body = append(body, bytes.Repeat([]byte(" "), v.Spaces)...)
	request := httptest.NewRequest(cmp.Or(v.Method, "POST"), "/hooks", bytes.NewReader(body))
	if v.Authorization != nil {
		request.Header.Set("Authorization", *v.Authorization)
	}
	return request
}

func start(t *testing.T, v vector, handler func(context.Context, Event) error, timeout time.Duration) *Receiver {
	receiver, err := NewReceiver(Options{
		Issuer: file.Issuer, Audience: file.Audience, Handler: handler, WebhookIDs: v.WebhookIds, Timeout: timeout,
		KeysURL: keySets(t).URL + "/" + v.KeySet, Now: func() time.Time { return time.UnixMilli(int64(v.Time * 1000)) },
	})
	if err != nil {
		t.Fatal(err)
	}
	return receiver
}

func send(receiver *Receiver, request *http.Request) (int, string) {
	answer := httptest.NewRecorder()
	receiver.ServeHTTP(answer, request)
	return answer.Code, answer.Body.String()
}

func fine(context.Context, Event) error { return nil }

func TestVectors(t *testing.T) {
	for _, v := range file.Vectors {
		t.Run(v.Name, func(t *testing.T) {
			var handled *string
			receiver := start(t, v, func(_ context.Context, event Event) error { handled = &event.ID; return nil }, 0)
			v.check(t, receiver, &handled)
		})
	}
}

// check sends a delivery, and compares the answer and what reached the handler.
func (v vector) check(t *testing.T, receiver *Receiver, handled **string) {
	status, body := send(receiver, v.request())
	if status != v.Verdict.Status {
		t.Errorf("answered %d %s, not %d %s", status, body, v.Verdict.Status, v.Verdict.Code)
	}
	if wanted := v.Verdict.Handled; (*handled == nil) != (wanted == nil) || wanted != nil && **handled != *wanted {
		t.Errorf("handled %v, not %v", *handled, wanted)
	}
}

func TestSequences(t *testing.T) {
	for _, sequence := range file.Sequences {
		t.Run(sequence.Name, func(t *testing.T) {
			var at int
			var take func(int)
			steps, handled := sequence.Steps, make([]*string, len(sequence.Steps))
			receiver := start(t, vector{KeySet: "published"}, func(_ context.Context, event Event) error {
				nth := at
				handled[nth] = &event.ID
				if nth+1 < len(steps) && steps[nth+1].During {
					take(nth + 1)
				}
				if steps[nth].Handler == "fails" {
					return errors.New("no")
				}
				return nil
			}, 0)
			receiver.options.Now = func() time.Time { return time.UnixMilli(int64(steps[at].Time * 1000)) }
			take = func(nth int) { at = nth; steps[nth].check(t, receiver, &handled[nth]) }
			for nth, step := range steps {
				if !step.During {
					take(nth)
				}
			}
		})
	}
}

func expect(t *testing.T, status int, body string, wanted int, code string) {
	t.Helper()
	if status != wanted || !strings.Contains(body, code) {
		t.Errorf("answered %d %s, not %d %s", status, body, wanted, code)
	}
}

func TestAnEventIsHandledOnce(t *testing.T) {
	good, handled := file.Vectors[0], 0
	receiver := start(t, good, func(_ context.Context, event Event) error {
		if handled++; event.ID == event.EventID {
			t.Error("the event's id is the delivery's")
		}
		return nil
	}, 0)
	status, body := send(receiver, good.request())
	expect(t, status, body, 200, "")
	answer := httptest.NewRecorder()
	receiver.ServeHTTP(answer, good.request())
	if !strings.Contains(answer.Header().Get("WWW-Authenticate"), `error_description="replay"`) || handled != 1 {
		t.Error(answer.Header(), handled)
	}
}

// asked is a store that notes for how long it is asked to keep something, and cannot record.
type asked struct {
	times  []time.Duration
	isAway bool
}

func (s *asked) Claim(_ string, hold time.Duration) (string, string, error) {
	if s.isAway {
		return "", "", errors.New("away")
	}
	s.times = append(s.times, hold)
	return "claimed", "owner", nil
}

func (s *asked) Record(_, _ string, keep time.Duration) (bool, error) {
	s.times = append(s.times, keep)
	return false, errors.New("away")
}

func (s *asked) Release(_, _ string) (bool, error) { return false, nil }

func TestAStoreIsAskedForAMinuteAndFor96HoursAndItsFailureLosesNothing(t *testing.T) {
	good, store := file.Vectors[0], &asked{}
	receiver := start(t, good, fine, 0)
	receiver.options.Store = store
	status, body := send(receiver, good.request())
	expect(t, status, body, 200, "")
	if len(store.times) != 2 || store.times[0] != time.Minute || store.times[1] != 96*time.Hour {
		t.Errorf("it was asked for %v", store.times)
	}
	store.isAway = true
	status, body = send(receiver, good.request())
	expect(t, status, body, 503, "replay_store_unavailable")
}

func TestAHandlerThatFailsOrPanicsGetsItAgain(t *testing.T) {
	good, calls := file.Vectors[0], 0
	receiver := start(t, good, func(context.Context, Event) error {
		switch calls++; calls {
		case 1:
			return errors.New("no")
		case 2:
			panic("no")
		case 3:
			return RetryLater{29200 * time.Millisecond}
		}
		return nil
	}, 0)
	for _, wanted := range []int{500, 500, 429, 200} {
		status, body := send(receiver, good.request())
		expect(t, status, body, wanted, "")
	}
}

func TestASlowHandlerIsAnsweredForAndCounts(t *testing.T) {
	good, begun, done := file.Vectors[0], make(chan struct{}), make(chan struct{})
	handler := func(context.Context, Event) error { close(begun); <-done; return nil }
	receiver := start(t, good, handler, 50*time.Millisecond)
	status, body := send(receiver, good.request())
	expect(t, status, body, 503, "timeout")
	<-begun
	receiver.options.Timeout = handlerTimeout
	status, body = send(receiver, good.request())
	expect(t, status, body, 503, "in_progress")
	close(done)
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if _, body = send(receiver, good.request()); strings.Contains(body, "replay") {
			return
		}
		if time.Now().After(end) {
			t.Fatal("it is not recorded: " + body)
		}
	}
}

func TestOtherMethodsAndLongBodies(t *testing.T) {
	good := file.Vectors[0]
	receiver := start(t, good, fine, 0)
	status, body := send(receiver, httptest.NewRequest("GET", "/hooks", nil))
	expect(t, status, body, 405, "method")
	long := httptest.NewRequest("POST", "/hooks", bytes.NewReader(make([]byte, maxBody+1)))
	status, body = send(receiver, long)
	expect(t, status, body, 401, "token_missing")
	long = httptest.NewRequest("POST", "/hooks", bytes.NewReader(make([]byte, maxBody+1)))
	long.Header.Set("Authorization", *good.Authorization)
	status, body = send(receiver, long)
	expect(t, status, body, 413, "body_too_large")
}

func TestStrangersCauseNoRequestsAndAFreshKeyDoesNotWait(t *testing.T) {
	requests, hang := 0, make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(response http.ResponseWriter, _ *http.Request) {
		if requests++; requests > 1 {
			<-hang
		}
		response.Write(file.KeySets["published"].Body)
	}))
	defer server.Close()
	defer close(hang)
	source := newKeys(server.URL)
	var kid string
	set, _ := object(file.KeySets["published"].Body, false)
	kid = set["keys"].([]any)[0].(map[string]any)["kid"].(string)
	if key, err := source.get(kid); key == nil || err != nil {
		t.Fatal(err)
	}
	for range 30 {
		source.get("stranger")
	}
	if requests != 1 {
		t.Error(requests, "requests")
	}
	source.fetchedAt = time.Now().Add(-299 * time.Second)
	go source.get("stranger")
	startedAt := time.Now()
	if key, err := source.get(kid); key == nil || err != nil || time.Since(startedAt) > time.Second {
		t.Error("a known key waited", err)
	}
}

func TestAKeyThatWasRevokedCountsNoLongerAfter300Seconds(t *testing.T) {
	for _, age := range []time.Duration{301 * time.Second, 3590 * time.Second} {
		sets := keySets(t)
		source := newKeys(sets.URL + "/published")
		set, _ := object(file.KeySets["published"].Body, false)
		kid := set["keys"].([]any)[0].(map[string]any)["kid"].(string)
		if key, err := source.get(kid); key == nil || err != nil {
			t.Fatal(err)
		}
		source.url = sets.URL + "/rotated"
		source.fetchedAt = time.Now().Add(-age)
		found := make(chan bool)
		for range 20 {
			go func() { key, _ := source.get(kid); found <- key != nil }()
		}
		for range 20 {
			if <-found {
				t.Error("a revoked key was accepted")
			}
		}
		source.known, source.url = map[string]ed25519.PublicKey{kid: make([]byte, 32)}, sets.URL+"/away"
		source.fetchedAt = time.Now().Add(-age)
		for range 5 {
			if key, err := source.get(kid); key == nil || err != nil {
				t.Error("the old keys do not serve while the issuer is away", err)
			}
		}
	}
}

func TestAnEmptyListOfWebhooksIsRefused(t *testing.T) {
	options := Options{Issuer: file.Issuer, Audience: file.Audience, Handler: fine, WebhookIDs: []string{}}
	if _, err := NewReceiver(options); err == nil {
		t.Error("it is taken for any")
	}
}

func TestClaimsAreFenced(t *testing.T) {
	now := time.Now()
	store := NewMemoryStore(2).(*memoryStore)
	store.now = func() time.Time { return now }
	_, late, _ := store.Claim("a", time.Minute)
	now = now.Add(time.Minute)
	_, owner, _ := store.Claim("a", time.Minute)
	released, _ := store.Release("a", late)
	recorded, _ := store.Record("a", late, time.Hour)
	own, _ := store.Record("a", owner, time.Hour)
	if released || recorded || !own {
		t.Error(released, recorded, own)
	}
	for _, key := range []string{"b", "c"} {
		store.Record(key, "", time.Hour)
	}
	if status, _, _ := store.Claim("a", time.Minute); status != "claimed" {
		t.Error("the oldest is not forgotten")
	}
}
