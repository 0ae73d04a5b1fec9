//! HTTP/1.1 as clients and applications see it, through two sidecars, through a server sidecar
//! alone (plaintext, permissive) and through a gateway: the same in all three places.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;
use tests_local::{
    CLIENT, Client, Gate, Mesh, Pair, Proxy, SERVER, Server, TlsServer, eventually, gateway_config,
    get, id, inbound_config, ok, one, outbound_config, pattern, pause, post,
};

/// Runs `check` against an application behind each kind of proxy.
fn everywhere(app: impl Fn() -> Server, check: impl Fn(SocketAddr, &Server)) {
    let server = app();
    let pair = Pair::start(server.address());
    eprintln!("through a pair");
    check(pair.address, &server);
    drop(pair);

    let server = app();
    let mesh = Mesh::new();
    let config = inbound_config(server.address()).set("/mesh/strictMtls", false);
    let proxy = Proxy::start(&mesh, SERVER, config.file);
    eprintln!("through a permissive server sidecar");
    check(config.address, &server);
    drop(proxy);

    let server = app();
    let mesh = Mesh::new();
    let config = gateway_config(server.address());
    let _proxy = Proxy::start(&mesh, "edge", config.file);
    eprintln!("through a gateway");
    check(config.address, &server);
}

#[test]
fn head_204_and_304_have_no_body_and_keep_the_connection() {
    let app = || {
        Server::http(|request| {
            let text = match request.target() {
                "/head" => "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n",
                "/head-chunked" => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
                "/204" => "HTTP/1.1 204 No Content\r\n\r\n",
                "/304" => "HTTP/1.1 304 Not Modified\r\nContent-Length: 1000\r\nETag: a\r\n\r\n",
                _ => "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
            };
            text.into()
        })
    };
    everywhere(app, |address, _| {
        let mut client = Client::connect(address);
        for (method, target, status) in [
            ("HEAD", "/head", 200),
            ("HEAD", "/head-chunked", 200),
            ("GET", "/204", 204),
            ("GET", "/304", 304),
        ] {
            client.send(format!("{method} {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
            let response = client.response(method);
            assert_eq!(response.status(), status, "{target}");
            if target == "/head" {
                assert_eq!(response.header("content-length"), "1000");
            }
            assert_eq!(client.get("/").text(), "ok", "after {target}");
        }
    });
}

#[test]
fn chunked_bodies_and_trailers_pass_both_ways() {
    let app = || {
        Server::http(|request| {
            assert_eq!(request.header("transfer-encoding"), "chunked");
            let trailers: String = request
                .trailers
                .iter()
                .map(|(n, v)| format!("{n}: {v}\r\n"))
                .collect();
            let body = request.text();
            format!(
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n\
                 {:x};name=\"v\"\r\n{body}\r\n0\r\n{trailers}\r\n",
                body.len()
            )
            .into()
        })
    };
    everywhere(app, |address, _| {
        let mut client = Client::connect(address);
        for _ in 0..2 {
            client.send(
                "POST / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nTransfer-Encoding: chunked\r\n\r\n\
                 5\r\nhello\r\n1;ext\r\n \r\n",
            );
            // The rest comes later, split in the middle of everything.
            for part in [
                "5",
                "\r",
                "\nwor",
                "ld\r\n",
                "0\r\nX-S",
                "um: 12\r\n",
                "\r",
                "\n",
            ] {
                pause("between parts of a body", Duration::from_millis(2));
                client.send(part);
            }
            let response = client.response("POST");
            assert_eq!(response.text(), "hello world");
            assert_eq!(response.trailers, [("X-Sum".to_owned(), "12".to_owned())]);
        }
    });
}

#[test]
fn large_bodies_pass_unchanged_in_bounded_memory() {
    const SIZE: usize = 50 * 1024 * 1024;
    let app = Server::http(|request| {
        if request.method() == "GET" {
            return ok(&pattern(SIZE));
        }
        assert_eq!(request.body.len(), SIZE);
        assert!(request.body == pattern(SIZE), "the body changed on its way");
        ok(b"got it")
    });
    let pair = Pair::start(app.address());
    assert_eq!(one(pair.address, "/").body.len(), SIZE);
    let before = [pair.client.memory(), pair.server.memory()];
    let mut client = pair.connect();
    assert!(
        client.get("/").body == pattern(SIZE),
        "the body changed on its way"
    );
    client.send(post("/", &pattern(SIZE)));
    assert_eq!(client.response("POST").text(), "got it");
    let chunked = [
        format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{SIZE:x}\r\n")
            .into_bytes(),
        pattern(SIZE),
        b"\r\n0\r\n\r\n".to_vec(),
    ];
    client.send(chunked.concat());
    assert_eq!(client.response("POST").text(), "got it");
    for (proxy, before) in [&pair.client, &pair.server].into_iter().zip(before) {
        let grown = proxy.memory_peak().saturating_sub(before);
        assert!(grown < 16 << 20, "memory grew by {grown} bytes");
    }
}

#[test]
fn a_client_that_does_not_read_stops_the_application_not_the_memory() {
    const SIZE: usize = 64 * 1024 * 1024;
    let app = Server::http(|_| ok(&vec![b'x'; SIZE]));
    let pair = Pair::start(app.address());
    assert_eq!(one(pair.address, "/").body.len(), SIZE);
    let before = pair.client.memory() + pair.server.memory();
    let mut slow: Vec<_> = (0..4)
        .map(|_| {
            let mut client = pair.connect();
            client.send(get("/"));
            client.read_exact(1000);
            client
        })
        .collect();
    // Others on the same connection between the sidecars are not held up.
    pause("the slow ones are stalled", Duration::from_millis(300));
    assert_eq!(one(pair.address, "/").body.len(), SIZE);
    let grown = (pair.client.memory() + pair.server.memory()).saturating_sub(before);
    assert!(grown < 32 << 20, "memory grew by {grown} bytes");
    for client in &mut slow {
        client.read_exact(SIZE - 1000);
    }
}

#[test]
fn an_application_that_does_not_read_stops_the_client_not_the_memory() {
    let served = Arc::<Gate>::default();
    let gate = served.clone();
    let app = Server::start(move |mut connection| {
        if connection.head().is_ok_and(|head| head.starts_with("GET")) {
            connection.send(ok(b"fast"));
            return;
        }
        gate.pass();
        let mut left = 32 << 20;
        while left > 0 {
            match connection.read_some() {
                Ok(bytes) if !bytes.is_empty() => left -= bytes.len(),
                _ => return,
            }
        }
        connection.send(ok(b"slow"));
    });
    let pair = Pair::start(app.address());
    // Growth is measured from the peak: pages of code that start-up needed and gave back do not count.
    let before = pair.client.memory_peak() + pair.server.memory_peak();
    let mut client = pair.connect();
    let address = pair.address;
    let other = std::thread::spawn(move || {
        pause("the upload is stalled", Duration::from_millis(500));
        let answer = one(address, "/").text();
        served.open();
        answer
    });
    client.send(post("/", &vec![b'x'; 32 << 20]));
    assert_eq!(client.response("POST").text(), "slow");
    assert_eq!(other.join().unwrap(), "fast");
    let peak = pair.client.memory_peak() + pair.server.memory_peak();
    assert!(
        peak.saturating_sub(before) < 16 << 20,
        "memory grew by {}",
        peak - before
    );
}

#[test]
fn expect_100_continue_reaches_the_application_and_its_answer_the_client() {
    let app = || {
        Server::start(|mut connection| {
            while let Ok(head) = connection.head() {
                assert!(head.contains("Expect: 100-continue"), "{head}");
                if head.starts_with("POST /no") {
                    connection.send(
                        "HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\n\
                         Connection: close\r\n\r\n",
                    );
                    return;
                }
                connection.send("HTTP/1.1 100 Continue\r\n\r\n");
                let Ok(body) = connection.read_exact(5) else {
                    return;
                };
                connection.send(ok(&body));
            }
        })
    };
    everywhere(app, |address, app| {
        let head = "HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n";
        let mut client = Client::connect(address);
        client.send(format!("POST /yes {head}"));
        assert_eq!(client.response("POST").status(), 100);
        assert!(!app.received_text().contains("hello"));
        client.send("hello");
        assert_eq!(client.response("POST").text(), "hello");
        // Refused: the final answer comes without the body having been sent.
        client.send(format!("POST /no {head}"));
        assert_eq!(client.response("POST").status(), 417);
    });
}

#[test]
fn interim_responses_pass_before_the_final_one() {
    let app = || {
        Server::http(|_| {
            b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n\
              HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
                .to_vec()
        })
    };
    everywhere(app, |address, _| {
        let mut client = Client::connect(address);
        for _ in 0..2 {
            client.send(get("/"));
            let hints = client.response("GET");
            assert_eq!((hints.status(), hints.header("link")), (103, "</a.css>"));
            assert_eq!(client.response("GET").status(), 102);
            assert_eq!(client.response("GET").text(), "ok");
        }
        // HTTP/1.0 knows no interim responses.
        client.send("GET / HTTP/1.0\r\n\r\n");
        assert_eq!(client.response("GET").status(), 200);
    });
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let app = || {
        Server::http(|request| {
            if request.target() == "/0" {
                pause("a slow answer", Duration::from_millis(50));
            }
            ok(format!("{} {}", request.target(), request.text()).as_bytes())
        })
    };
    everywhere(app, |address, _| {
        let mut client = Client::connect(address);
        let mut requests = Vec::new();
        for number in 0..20 {
            if number % 3 == 0 {
                requests.extend_from_slice(&post(&format!("/{number}"), b"body"));
            } else {
                requests.extend_from_slice(get(&format!("/{number}")).as_bytes());
            }
        }
        client.send(requests);
        for number in 0..20 {
            let body = if number % 3 == 0 { "body" } else { "" };
            assert_eq!(client.response("GET").text(), format!("/{number} {body}"));
        }
    });
}

#[test]
fn connection_close_is_obeyed_on_both_sides() {
    let app = || {
        Server::http(|request| match request.target() {
            "/app-closes" => {
                b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok".to_vec()
            }
            _ => ok(b"ok"),
        })
    };
    everywhere(app, |address, app| {
        // The client asks for it.
        let mut client = Client::connect(address);
        client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        let response = client.response("GET");
        assert_eq!(response.text(), "ok");
        assert_eq!(response.header("connection"), "close");
        assert!(client.is_ended());
        // It ends the client's connection, not the application's.
        assert_eq!(one(address, "/").text(), "ok");
        assert_eq!(app.connections(), 1);
        // The application asks for it: that ends the application's connection only.
        let mut client = Client::connect(address);
        let response = client.get("/app-closes");
        assert_eq!(response.text(), "ok");
        assert_eq!(response.header("connection"), "");
        assert_eq!(client.get("/").text(), "ok");
        assert_eq!(app.connections(), 2);
    });
}

#[test]
fn http_1_0_clients_are_served() {
    let app = || Server::http(|request| ok(request.target().as_bytes()));
    everywhere(app, |address, _| {
        let mut client = Client::connect(address);
        client.send("GET /old HTTP/1.0\r\n\r\n");
        assert_eq!(client.response("GET").text(), "/old");
        assert!(client.is_ended());
        let mut client = Client::connect(address);
        for _ in 0..2 {
            client.send("GET /kept HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n");
            let response = client.response("GET");
            assert_eq!(response.text(), "/kept");
            assert_eq!(
                response.header("connection").to_ascii_lowercase(),
                "keep-alive"
            );
        }
    });
}

#[test]
fn an_absolute_form_target_is_understood() {
    everywhere(Server::echo, |address, _| {
        let mut client = Client::connect(address);
        client.send("GET http://ratings/a?b HTTP/1.1\r\nHost: other\r\n\r\n");
        let response = client.response("GET");
        assert_eq!(response.status(), 200);
        // RFC 9112 3.2.2: the target's host counts, whatever Host says.
        assert!(
            response
                .text()
                .to_ascii_lowercase()
                .contains("host: ratings\r\n"),
            "{}",
            response.text()
        );
        assert!(!response.text().contains("other"), "{}", response.text());
    });
}

#[test]
fn an_upgrade_opens_a_tunnel_both_ways() {
    let app = || {
        Server::start(|mut connection| {
            let Ok(head) = connection.head() else { return };
            assert!(
                head.to_ascii_lowercase()
                    .contains("\r\nupgrade: websocket\r\n"),
                "{head}"
            );
            assert!(
                head.to_ascii_lowercase()
                    .contains("\r\nconnection: upgrade\r\n"),
                "{head}"
            );
            // The first bytes of the new protocol come with the answer.
            connection.send(
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
                 Connection: Upgrade\r\n\r\nhello",
            );
            loop {
                match connection.read_some() {
                    Ok(bytes) if !bytes.is_empty() => connection.send(bytes),
                    _ => break,
                }
            }
            connection.send("bye");
        })
    };
    everywhere(app, |address, _| {
        let mut client = Client::connect(address);
        client.send(
            "GET /chat HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: x\r\n\r\n",
        );
        let response = client.response("GET");
        assert_eq!(response.status(), 101, "{}", response.head);
        assert_eq!(response.header("upgrade"), "websocket");
        assert!(
            response
                .header("connection")
                .eq_ignore_ascii_case("upgrade")
        );
        assert_eq!(client.read_exact(5), b"hello");
        for size in [1, 100, 100_000] {
            // Bytes that would be a request smuggled in, were this still HTTP.
            let bytes = pattern(size);
            client.send(&bytes);
            assert!(client.read_exact(size) == bytes);
        }
        client.half_close();
        assert_eq!(client.read_to_end().unwrap(), b"bye");
    });
}

#[test]
fn an_upgrade_that_is_refused_stays_http() {
    everywhere(Server::echo, |address, _| {
        let mut client = Client::connect(address);
        for _ in 0..2 {
            client.send(
                "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
            );
            assert_eq!(client.response("GET").status(), 200);
            assert_eq!(client.get("/next").status(), 200);
        }
    });
}

#[test]
fn a_response_before_the_end_of_the_request_arrives() {
    let app = || {
        Server::start(|mut connection| {
            if connection.head().is_ok() {
                connection.send(
                    "HTTP/1.1 413 Content Too Large\r\nConnection: close\r\n\
                     Content-Length: 3\r\n\r\nbig",
                );
                connection.half_close();
                // Servers should do this: leave the client time to read.
                while connection.read_some().is_ok_and(|bytes| !bytes.is_empty()) {}
            }
        })
    };
    everywhere(app, |address, _| {
        let mut client = Client::connect(address);
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\nstart");
        let response = client.response("POST");
        assert_eq!((response.status(), response.text().as_str()), (413, "big"));
        // The rest of the body was never sent, so nothing can follow on this connection.
        assert_eq!(response.header("connection"), "close");
    });
}

/// Not all servers do: with something unread their end is a reset, which comes while more is sent to them.
#[test]
fn a_response_before_a_reset_arrives() {
    let app = Server::start(|mut connection| {
        if connection.head().is_ok() {
            connection.send("HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\n\r\nbig");
        }
    });
    let pair = Pair::start(app.address());
    let body = pattern(300_000);
    for _ in 0..100 {
        let mut client = pair.connect();
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n");
        // The response may end the connection before all was sent.
        let _ = client.try_send(&body);
        let response = client.response("POST");
        assert_eq!((response.status(), response.text().as_str()), (413, "big"));
    }
}

#[test]
fn a_slow_client_is_served() {
    everywhere(Server::echo, |address, _| {
        let mut client = Client::connect(address);
        for byte in post("/slow", b"drip") {
            client.send([byte]);
        }
        assert!(client.response("POST").text().ends_with("drip"));
    });
}

#[test]
fn a_slow_server_is_waited_for_byte_by_byte() {
    let app = || {
        Server::start(|mut connection| {
            while connection.request().is_ok() {
                for byte in ok(b"drip") {
                    connection.send([byte]);
                    pause("between two bytes", Duration::from_millis(1));
                }
            }
        })
    };
    everywhere(app, |address, _| {
        let mut client = Client::connect(address);
        assert_eq!(client.get("/").text(), "drip");
        assert_eq!(client.get("/").text(), "drip");
    });
}

#[test]
fn parts_of_a_response_are_not_held_back() {
    let app = || {
        Server::start(|mut connection| {
            if let Ok(request) = connection.request() {
                assert_eq!(request.method(), "GET");
                connection
                    .send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\none.\r\n");
                // Only after the client has seen the first part it asks for the second.
                let Ok(more) = connection.request() else {
                    return;
                };
                assert_eq!(more.target(), "/more");
                connection.send("0\r\n\r\n");
            }
        })
    };
    let app = app();
    let pair = Pair::start(app.address());
    let mut client = pair.connect();
    client.send(get("/"));
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\none.\r\n";
    assert_eq!(
        String::from_utf8_lossy(&client.read_exact(head.len())),
        head
    );
}

#[test]
fn a_body_that_ends_with_the_connection_ends_it() {
    let app = || {
        Server::start(|mut connection| {
            if connection.request().is_ok() {
                connection.send("HTTP/1.1 200 OK\r\nX-A: b\r\n\r\nuntil ");
                pause("between parts of a response", Duration::from_millis(20));
                connection.send("the end");
            }
        })
    };
    everywhere(app, |address, _| {
        let mut client = Client::connect(address);
        let response = client.get("/");
        assert_eq!(response.text(), "until the end");
        assert!(client.is_ended());
    });
}

#[test]
fn a_half_closed_client_still_gets_its_answer() {
    let app = || {
        Server::http(|_| {
            pause("a slow answer", Duration::from_millis(100));
            ok(b"late")
        })
    };
    everywhere(app, |address, _| {
        let mut client = Client::connect(address);
        client.send(get("/"));
        client.half_close();
        assert_eq!(client.response("GET").text(), "late");
        assert!(client.is_ended());
    });
}

#[test]
fn empty_lines_before_a_request_are_skipped() {
    everywhere(Server::echo, |address, _| {
        let mut client = Client::connect(address);
        client.send(format!("\r\n{}", get("/a")));
        assert_eq!(client.response("GET").status(), 200);
        client.send(format!("\r\n{}", get("/b")));
        assert!(client.response("GET").text().starts_with("GET /b "));
    });
}

#[test]
fn a_client_that_leaves_ends_the_request_at_the_application() {
    let app = Server::start(|mut connection| {
        if connection.request().is_ok() {
            // The end of the connection is the only thing that comes.
            while connection.read_some().is_ok_and(|bytes| !bytes.is_empty()) {}
        }
    });
    let pair = Pair::start(app.address());
    let mut client = pair.connect();
    client.send(get("/"));
    eventually("the request arrives", || {
        app.received_text().contains("GET /")
    });
    rustix::net::sockopt::set_socket_linger(client.stream(), Some(Duration::ZERO)).unwrap();
    drop(client);
    let gone = ["response_code=\"499\"", "response_flags=\"client_closed\""];
    pair.client.await_metric("istio_requests_total", &gone, 1.0);
    pair.server.await_metric("istio_requests_total", &gone, 1.0);
}

/// The client waits for the answer to what it has sent before it sends more: nothing of that may stay in the sidecar, whatever the
/// way to the peer had room for when it came.
#[test]
fn uploads_that_pause_arrive_at_a_peer_with_tls() {
    let mesh = Mesh::new();
    let certificate = mesh.ca.issue(&id(SERVER));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 16 * 1024).unwrap();
    let peer = TlsServer::on(listener, &certificate, &["http/1.1"], |mut connection| {
        pause("the way to the peer fills", Duration::from_secs(1));
        if connection.read_until(b"and all of it").is_ok() {
            let _ = connection.send(ok(b"more"));
        }
    });
    let config = outbound_config(peer.address());
    let address = config.address;
    let _proxy = Proxy::start(&mesh, CLIENT, config.file);
    std::thread::scope(|scope| {
        for length in (2400..4000).step_by(40).map(|kib| kib * 1024) {
            scope.spawn(move || {
                let mut client = Client::connect(address);
                client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
                let mut chunk = pattern(length);
                chunk.extend_from_slice(b"and all of it");
                client.send(format!("{:x}\r\n", chunk.len()));
                client.send(chunk);
                client.send("\r\n");
                assert_eq!(client.response("POST").text(), "more", "{length}");
            });
        }
    });
}
