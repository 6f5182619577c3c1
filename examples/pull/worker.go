// With TIDINGS_URL, TIDINGS_API_KEY, TIDINGS_API_SECRET and WEBHOOK_ID: go run .
package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"example.com/receiver/tidings"
)

const take = `mutation ($webhookId: UUID!, $limit: Int, $waitSeconds: Int) {
  taken: takeDeliveries(webhookId: $webhookId, limit: $limit, waitSeconds: $waitSeconds) { deliveryId attempt headers body }
}`
const answer = `mutation ($answers: [DeliveryAnswer!]!) { answerDeliveries(answers: $answers) { counted reason } }`

type taken struct {
	DeliveryID string            `json:"deliveryId"`
	Attempt    int               `json:"attempt"`
	Headers    map[string]string `json:"headers"`
	Body       string            `json:"body"`
}

type apiError struct{ code, message string }

func (e apiError) Error() string { return e.message }

var server = strings.TrimRight(cmp.Or(os.Getenv("TIDINGS_URL"), "http://127.0.0.1:4100"), "/")
var client = http.Client{Timeout: 45 * time.Second}

// ask sends a signed request, and reads its data.
func ask(document string, variables map[string]any, data any) error {
	body, err := json.Marshal(map[string]any{"query": document, "variables": variables})
	if err != nil {
		return err
	}
	to, err := url.Parse(server + "/graphql")
	if err != nil {
		return err
	}
	request, _ := http.NewRequest(http.MethodPost, to.String(), bytes.NewReader(body))
	sum := sha256.Sum256(body)
	digest := base64.StdEncoding.EncodeToString(sum[:])
	nonce := make([]byte, 16)
	rand.Read(nonce)
	date := time.Now().UTC().Format(http.TimeFormat)
	values := []string{date, to.Host, digest, hex.EncodeToString(nonce)}
	secret, err := base64.StdEncoding.DecodeString(os.Getenv("TIDINGS_API_SECRET"))
	if err != nil {
		return err
	}
	mac := hmac.New(sha256.New, secret)
	fmt.Fprintf(mac, "POST\n%s\n%s", to.Path, strings.Join(values, ";"))
	signature := base64.StdEncoding.EncodeToString(mac.Sum(nil))
	request.Header.Set("x-date", date)
	request.Header.Set("x-content-sha256", digest)
	request.Header.Set("x-nonce", values[3])
	request.Header.Set("content-type", "application/json")
	request.Header.Set("authorization", fmt.Sprintf(
		"HMAC-SHA256 Credential=%s&SignedHeaders=x-date;host;x-content-sha256;x-nonce&Signature=%s",
		os.Getenv("TIDINGS_API_KEY"), signature))
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	var told struct {
		Data   json.RawMessage
		Errors []struct {
			Message    string
			Extensions struct{ Code string }
		}
	}
	if err := json.NewDecoder(response.Body).Decode(&told); err != nil {
		return err
	}
	if len(told.Errors) > 0 {
		return apiError{told.Errors[0].Extensions.Code, told.Errors[0].Message}
	}
	return json.Unmarshal(told.Data, data)
}

// patiently waits for a server that is away; the same answer may be sent again.
func patiently(document string, variables map[string]any, data any) {
	final := []string{"UNAUTHENTICATED", "FORBIDDEN", "NOT_FOUND", "BAD_USER_INPUT"}
	for pause := 500 * time.Millisecond; ; pause = min(2*pause, 15*time.Second) {
		err := ask(document, variables, data)
		if err == nil {
			return
		}
		var refused apiError
		if errors.As(err, &refused) && slices.Contains(final, refused.code) {
			log.Fatal(err)
		}
		log.Printf("%v Trying again in %v.", err, pause)
		time.Sleep(pause)
	}
}

func main() {
	webhookID := os.Getenv("WEBHOOK_ID")
	receiver, err := tidings.NewReceiver(tidings.Options{
		Issuer:   server,
		Audience: server + "/pull/" + webhookID,
		Handler: func(_ context.Context, event tidings.Event) error {
			fmt.Println(event.EventType, string(event.Payload))
			return nil
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	for {
		var found struct{ Taken []taken }
		patiently(take, map[string]any{"webhookId": webhookID, "limit": 1, "waitSeconds": 25}, &found)
		// One at a time. For more, run more of these.
		for _, one := range found.Taken {
			request := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(one.Body))
			for name, value := range one.Headers {
				request.Header.Set(name, value)
			}
			response := httptest.NewRecorder()
			receiver.ServeHTTP(response, request)
			headers := map[string]string{}
			for name := range response.Header() {
				headers[name] = response.Header().Get(name)
			}
			given := map[string]any{
				"deliveryId": one.DeliveryID, "attempt": one.Attempt, "status": response.Code, "headers": headers,
			}
			patiently(answer, map[string]any{"answers": []any{given}}, &struct{}{})
		}
	}
}
