// go mod init receiver && go get github.com/golang-jwt/jwt/v5, then: go run receiver.go
// In another terminal: npx tidings webhooks create http://127.0.0.1:3000/hooks
package main

import (
	"cmp"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

var (
	issuer   = cmp.Or(os.Getenv("ISSUER"), "http://127.0.0.1:4100")
	audience = cmp.Or(os.Getenv("AUDIENCE"), "http://127.0.0.1:3000/hooks")
	parser   = jwt.NewParser(jwt.WithValidMethods([]string{"EdDSA"}), jwt.WithIssuer(issuer), jwt.WithExpirationRequired())
	handled  sync.Map // several processes share a store, such as Redis with SET NX EX
)

type event struct {
	EventId, EventType string
	Payload            json.RawMessage
}

func handle(e event) error {
	fmt.Println(e.EventType, string(e.Payload))
	return nil
}

func receive(r *http.Request) (status int) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return 400
	}
	_, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	claims := jwt.MapClaims{}
	if _, err := parser.ParseWithClaims(token, claims, findKey); errors.Is(err, errNoKeys) {
		return 503 // no fault of the sender: it comes again
	} else if err != nil || claims["aud"] != audience { // exactly this, and no list
		return 401
	}
	if iat, _ := claims.GetIssuedAt(); iat == nil || time.Until(iat.Time) > time.Minute {
		return 401
	}
	var e event
	if json.Unmarshal(body, &e) != nil || e.EventId == "" || claims["jti"] != e.EventId {
		return 401
	}
	if done, known := handled.LoadOrStore(e.EventId, false); known && done.(bool) {
		return 401 // a replay
	} else if known {
		return 503 // it is being handled right now
	}
	if handle(e) != nil {
		handled.Delete(e.EventId) // it comes again, under the same jti
		return 500
	}
	handled.Store(e.EventId, true)
	return 200
}

var (
	errNoKeys = errors.New("the issuer's keys could not be had")
	lock      sync.Mutex
	keys      map[string]ed25519.PublicKey
	fetched   time.Time
)

// findKey keeps the keys for 5 minutes, and looks for a kid that it does not know every 10 seconds at most.
func findKey(token *jwt.Token) (any, error) {
	lock.Lock()
	defer lock.Unlock()
	kid, _ := token.Header["kid"].(string)
	age := time.Since(fetched)
	if keys[kid] == nil && age > 10*time.Second || age > 5*time.Minute {
		if err := fetchKeys(); err != nil {
			return nil, errNoKeys
		}
	}
	if keys[kid] == nil {
		return nil, errors.New("unknown kid")
	}
	return keys[kid], nil
}

func fetchKeys() error {
	client := http.Client{Timeout: 5 * time.Second}
	response, err := client.Get(issuer + "/.well-known/jwks.json")
	if err != nil {
		return err
	}
	defer response.Body.Close()
	var set struct {
		Keys []struct{ Kid, Crv, X string }
	}
	if err := json.NewDecoder(response.Body).Decode(&set); err != nil {
		return err
	}
	keys, fetched = map[string]ed25519.PublicKey{}, time.Now()
	for _, key := range set.Keys {
		if x, err := base64.RawURLEncoding.DecodeString(key.X); err == nil && key.Crv == "Ed25519" && len(x) == ed25519.PublicKeySize {
			keys[key.Kid] = x
		}
	}
	return nil
}

func main() {
	http.HandleFunc("POST /hooks", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(receive(r)) })
	log.Fatal(http.ListenAndServe("127.0.0.1:"+cmp.Or(os.Getenv("PORT"), "3000"), nil))
}
