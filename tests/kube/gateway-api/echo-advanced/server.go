package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	pb "sigs.k8s.io/gateway-api/conformance/echo-basic/grpcechoserver"
)

// serve takes `--port`, `--tcp`, `--grpc` and `--tls`, each any number of times; a port of `--port` is
// in TLS if `--tls` names it, too. Other options are accepted: nothing the suite asks for needs
// them. Without any port it is only there.
func serve(arguments []string) error {
	ports := map[string][]string{}
	for _, argument := range arguments {
		name, value, _ := strings.Cut(strings.TrimPrefix(argument, "--"), "=")
		ports[name] = append(ports[name], value)
	}
	certificate, err := selfSigned()
	if err != nil {
		return err
	}
	inTLS := map[string]bool{}
	for _, port := range ports["tls"] {
		inTLS[port] = true
	}

	ended := make(chan error)
	for _, port := range ports["port"] {
		listener, err := net.Listen("tcp", ":"+port)
		if err != nil {
			return err
		}
		// HTTP/2 as well, in plaintext by its preface: the mesh may choose.
		var protocols http.Protocols
		protocols.SetHTTP1(true)
		protocols.SetHTTP2(true)
		protocols.SetUnencryptedHTTP2(true)
		server := &http.Server{Handler: echoHTTP(port), Protocols: &protocols, ReadHeaderTimeout: time.Minute}
		if inTLS[port] {
			server.TLSConfig = &tls.Config{Certificates: []tls.Certificate{certificate}}
			go func() { ended <- server.ServeTLS(listener, "", "") }()
		} else {
			go func() { ended <- server.Serve(listener) }()
		}
	}
	for _, port := range ports["grpc"] {
		listener, err := net.Listen("tcp", ":"+port)
		if err != nil {
			return err
		}
		server := grpc.NewServer()
		pb.RegisterGrpcEchoServer(server, &echoGRPC{})
		go func() { ended <- server.Serve(listener) }()
	}
	for _, port := range ports["tcp"] {
		listener, err := net.Listen("tcp", ":"+port)
		if err != nil {
			return err
		}
		go func() { ended <- echoTCP(listener) }()
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	select {
	case err := <-ended:
		return err
	case <-stop:
		return nil
	}
}

func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return name
}

func echoHTTP(port string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		remote, _, _ := net.SplitHostPort(r.RemoteAddr)
		w.Header().Set("Content-Type", "text/plain")
		fmt.Fprintf(w, "ServicePort=%s\nHost=%s\nURL=%s\nMethod=%s\nProto=%s\nIP=%s\n",
			port, r.Host, r.URL.RequestURI(), r.Method, r.Proto, remote)
		for name, values := range r.Header {
			for _, value := range values {
				fmt.Fprintf(w, "RequestHeader=%s:%s\n", name, value)
			}
		}
		fmt.Fprintf(w, "Hostname=%s\n", hostname())
	}
}

type echoGRPC struct {
	pb.UnimplementedGrpcEchoServer
}

func (*echoGRPC) Echo(ctx context.Context, _ *pb.EchoRequest) (*pb.EchoResponse, error) {
	said := &pb.Assertions{Context: &pb.Context{Pod: hostname()}}
	received, _ := metadata.FromIncomingContext(ctx)
	for name, values := range received {
		for _, value := range values {
			said.Headers = append(said.Headers, &pb.Header{Key: name, Value: value})
		}
	}
	return &pb.EchoResponse{Assertions: said}, nil
}

func echoTCP(listener net.Listener) error {
	for {
		connection, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer connection.Close()
			_, _ = io.Copy(connection, connection)
		}()
	}
}

func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "echo"},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().AddDate(1, 0, 0),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
