package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	pb "sigs.k8s.io/gateway-api/conformance/echo-basic/grpcechoserver"
)

const patience = 10 * time.Second

// wish is what the command line asks for.
type wish struct {
	target  *url.URL
	method  string
	headers http.Header
	count   int
}

// request asks `--count` times for a URL, and prints each answer, with an empty line behind it.
func request(arguments []string) error {
	w, err := parse(arguments)
	if err != nil {
		return err
	}
	ask := askHTTP
	if w.target.Scheme == "grpc" {
		ask = askGRPC
	}
	for range w.count {
		answer, err := ask(w)
		if err != nil {
			return err
		}
		fmt.Println(answer)
	}
	return nil
}

func parse(arguments []string) (*wish, error) {
	w := &wish{method: http.MethodGet, headers: http.Header{}, count: 1}
	for i := 0; i < len(arguments); i++ {
		argument := arguments[i]
		var err error
		switch name, value, _ := strings.Cut(argument, "="); {
		case name == "--method":
			w.method = value
		case name == "--count":
			w.count, err = strconv.Atoi(value)
		case name == "-H" && i+1 < len(arguments):
			i++
			name, value, _ := strings.Cut(arguments[i], ":")
			w.headers.Add(name, value)
		case strings.Contains(argument, "://"):
			w.target, err = url.Parse(argument)
		default:
			err = fmt.Errorf("%s is not understood", argument)
		}
		if err != nil {
			return nil, err
		}
	}
	return w, nil
}

// A connection for each request, as from clients that know nothing of each other; redirects are answers.
var client = &http.Client{
	Timeout:       patience,
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	Transport: &http.Transport{
		DisableKeepAlives:  true,
		DisableCompression: true,
		TLSClientConfig:    &tls.Config{InsecureSkipVerify: true},
	},
}

func askHTTP(w *wish) (string, error) {
	asked, err := http.NewRequest(w.method, w.target.String(), nil)
	if err != nil {
		return "", err
	}
	asked.Header = w.headers.Clone()
	if host := asked.Header.Get("Host"); host != "" {
		asked.Host = host
	}
	answer, err := client.Do(asked)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return "", err
	}
	var text strings.Builder
	fmt.Fprintf(&text, "StatusCode=%d\n", answer.StatusCode)
	for name, values := range answer.Header {
		for _, value := range values {
			fmt.Fprintf(&text, "ResponseHeader=%s:%s\n", name, value)
		}
	}
	for line := range strings.SplitSeq(strings.TrimSpace(string(body)), "\n") {
		fmt.Fprintln(&text, line)
	}
	return text.String(), nil
}

func askGRPC(w *wish) (string, error) {
	connection, err := grpc.NewClient(w.target.Host, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return "", err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for name, values := range w.headers {
		for _, value := range values {
			ctx = metadata.AppendToOutgoingContext(ctx, name, value)
		}
	}
	var answered metadata.MD
	answer, err := pb.NewGrpcEchoClient(connection).Echo(ctx, &pb.EchoRequest{}, grpc.Header(&answered))
	if err != nil {
		return "", err
	}
	// What the suite calls the status of an answer without an error.
	var text strings.Builder
	fmt.Fprintln(&text, "StatusCode=200")
	for name, values := range answered {
		for _, value := range values {
			fmt.Fprintf(&text, "ResponseHeader=%s:%s\n", name, value)
		}
	}
	for _, header := range answer.GetAssertions().GetHeaders() {
		fmt.Fprintf(&text, "RequestHeader=%s:%s\n", header.GetKey(), header.GetValue())
	}
	fmt.Fprintf(&text, "Hostname=%s\n", answer.GetAssertions().GetContext().GetPod())
	return text.String(), nil
}
