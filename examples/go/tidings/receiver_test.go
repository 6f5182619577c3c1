package tidings

import (
	"bytes"
	"context"
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
	Name, Body, BodyBase64, KeySet string
	Authorization                  *string
	WebhookIds                     []string
	Time                           float64
	Verdict                        struct {
		Status int
		Code   string
	}
}

var file struct {
	Issuer, Audience string
	KeySets          map[string]struct {
		Status int
		Body   json.RawMessage
	}
	Vectors []vector
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
	request := httptest.NewRequest("POST", "/hooks", bytes.NewReader(body))
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
			if status, body := send(start(t, v, fine, 0), v.request()); status != v.Verdict.Status {
				t.Errorf("answered %d %s, not %d %s", status, body, v.Verdict.Status, v.Verdict.Code)
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
	good, done := file.Vectors[0], make(chan struct{})
	receiver := start(t, good, func(context.Context, Event) error { <-done; return nil }, 50*time.Millisecond)
	status, body := send(receiver, good.request())
	expect(t, status, body, 503, "timeout")
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

func TestStrangersCauseNoRequestsAndAKnownKeyDoesNotWait(t *testing.T) {
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
	source.fetchedAt = time.Now().Add(-50 * time.Minute)
	go source.get("stranger")
	startedAt := time.Now()
	if key, err := source.get(kid); key == nil || err != nil || time.Since(startedAt) > time.Second {
		t.Error("a known key waited", err)
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
