// go run . and in another terminal: npx tidings webhooks create http://127.0.0.1:3000/hooks
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"net/http"
	"os"
	"time"

	"example.com/receiver/tidings"
)

func main() {
	receiver, err := tidings.NewReceiver(tidings.Options{
		Issuer:   cmp.Or(os.Getenv("ISSUER"), "http://127.0.0.1:4100"),
		Audience: cmp.Or(os.Getenv("AUDIENCE"), "http://127.0.0.1:3000/hooks"),
		Handler: func(_ context.Context, event tidings.Event) error {
			fmt.Println(event.EventType, string(event.Payload))
			return nil
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("/hooks", receiver)
	server := http.Server{
		Addr:              "127.0.0.1:" + cmp.Or(os.Getenv("PORT"), "3000"),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       15 * time.Second,
	}
	log.Fatal(server.ListenAndServe())
}
