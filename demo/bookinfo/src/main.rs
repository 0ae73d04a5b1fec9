//! Bookinfo, the demo's application: five small services, each its own process.
//!
//! They speak plain HTTP/1.1 and know nothing of the mesh: a sidecar in front of each makes every
//! hop mutual TLS. The two paths the demo and the benchmarks use are `ratings` alone and
//! `gateway` → `ratings`; `productpage` → `details`, `reviews` → `ratings` fills a web page.

mod authorize;
mod catalogue;
mod client;
mod collect;
mod details;
mod dial;
mod echo;
mod gateway;
mod greet;
mod grpc;
mod http;
mod load;
mod page;
mod productpage;
mod ratings;
mod reviews;
mod server;
mod store;
mod talk;
mod uuid;
mod websocket;

use clap::{Args, Parser, Subcommand};
use client::{Client, Upstream};
use hyper::StatusCode;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

#[derive(Parser)]
#[command(
    name = "bookinfo",
    version,
    about = "One of the services of the bookinfo demo"
)]
struct Cli {
    #[command(subcommand)]
    service: Service,
}

#[derive(Subcommand)]
enum Service {
    /// API gateway: /bookinfo-ratings, /bookinfo-reviews and /bookinfo-details
    Gateway {
        #[command(flatten)]
        listen: Listen<10000>,
        /// Where ratings answers: host:port or http://host:port
        #[arg(long, env = "RATINGS_URL", default_value = "ratings:8101")]
        ratings: Upstream,
        /// Where reviews answers
        #[arg(long, env = "REVIEWS_URL", default_value = "reviews:8102")]
        reviews: Upstream,
        /// Where details answers
        #[arg(long, env = "DETAILS_URL", default_value = "details:8103")]
        details: Upstream,
    },
    /// The web page: /productpage
    Productpage {
        #[command(flatten)]
        listen: Listen<9080>,
        /// Where details answers: host:port or http://host:port
        #[arg(long, env = "DETAILS_URL", default_value = "details:8103")]
        details: Upstream,
        /// Where reviews answers
        #[arg(long, env = "REVIEWS_URL", default_value = "reviews:8102")]
        reviews: Upstream,
    },
    /// Reviews of a book, each with its rating: /reviews/{product}
    Reviews {
        #[command(flatten)]
        listen: Listen<8102>,
        /// Where ratings answers: host:port or http://host:port
        #[arg(long, env = "RATINGS_URL", default_value = "ratings:8101")]
        ratings: Upstream,
    },
    /// Ratings, kept in an embedded database: /ratings/{id}
    Ratings {
        #[command(flatten)]
        listen: Listen<8101>,
        /// The database file; made if absent (default: ratings.redb in the directory that the mesh
        /// gives it as STATE_DIRECTORY, else in the working directory)
        #[arg(long, env = "RATINGS_DATABASE")]
        database: Option<PathBuf>,
    },
    /// Facts about a book: /details/{product}
    Details {
        #[command(flatten)]
        listen: Listen<8103>,
    },
    /// Not of the demo, for trying things: says what it was asked, by HTTP, gRPC and WebSocket;
    /// /status/{code}, /delay/{seconds}, /numbers for Prometheus
    Echo {
        #[command(flatten)]
        listen: Listen<8104>,
        /// How it calls itself in its answers
        #[arg(long, env = "NAME", default_value = "echo")]
        name: String,
        /// Status of its answers, to be one that fails
        #[arg(long, default_value = "200", value_parser = status)]
        status: StatusCode,
    },
    /// Not of the demo: decides about requests for a mesh, by HTTP and gRPC; lets in who brings a token
    Authorize {
        #[command(flatten)]
        listen: Listen<8105>,
        /// Token that requests need, as `Authorization: Bearer TOKEN`
        #[arg(long)]
        token: String,
        /// User of the token; allowed requests carry it as x-user
        #[arg(long)]
        user: String,
    },
    /// Not of the demo: takes spans, metrics and records of logs as a collector (OTLP over gRPC), and says which by HTTP
    Collect {
        #[command(flatten)]
        listen: Listen<4317>,
    },
    /// Not of the demo: speaks first on each connection, as databases do, then says each line again
    Greet {
        #[command(flatten)]
        listen: Listen<8106>,
        /// How it calls itself
        #[arg(long, env = "NAME", default_value = "greet")]
        name: String,
    },
    /// Not of the demo: asks for URLs again and again, and answers with what became of the requests
    Load {
        #[command(flatten)]
        listen: Listen<8107>,
        /// Connections to keep for each URL, and as many that are not kept
        #[arg(long, default_value_t = 2)]
        lanes: usize,
        /// Milliseconds between an answer and the next request
        #[arg(long, default_value_t = 20)]
        pause: u64,
        #[command(flatten)]
        manner: dial::Manner,
        /// http://host:port/path or https://host:port/path
        #[arg(required = true)]
        urls: Vec<hyper::Uri>,
    },
    /// Not a service: asks for a URL and prints status, reason and content, where there is no curl
    Fetch {
        /// Header to send, such as "x-user: anna"; may be repeated
        #[arg(short = 'H', long = "header", value_parser = talk::field)]
        headers: Vec<(String, String)>,
        /// http://host:port/path
        url: String,
    },
    /// Not a service: says words to an echo and prints its answers
    Talk {
        /// Header to send, such as "x-user: anna"; may be repeated
        #[arg(short = 'H', long = "header", value_parser = talk::field)]
        headers: Vec<(String, String)>,
        /// Leave a WebSocket open until the other side ends it
        #[arg(long)]
        wait: bool,
        /// http://host:port/path, tcp://host:port, ws://host:port/path, grpc://host:port/Say or grpc://host:port/Repeat
        url: String,
        /// Words to say
        #[arg(required = true)]
        words: Vec<String>,
    },
}

/// Loopback by default: a service behind a sidecar is reached through the sidecar, never directly.
#[derive(Args)]
struct Listen<const PORT: u16> {
    /// Address to listen on
    #[arg(long, env = "BIND", default_value = "127.0.0.1")]
    bind: IpAddr,
    /// Port to listen on (default: the service's own, as in demo/mesh.yaml); 0 takes a free one
    // Not `default_value_t`: clap keeps it in a static, which all instances of a generic share.
    #[arg(long, env = "PORT")]
    port: Option<u16>,
}

impl<const PORT: u16> Listen<PORT> {
    fn address(&self) -> SocketAddr {
        (self.bind, self.port.unwrap_or(PORT)).into()
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Cli::parse().service).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("bookinfo: {problem}");
            ExitCode::FAILURE
        }
    }
}

async fn run(service: Service) -> Result<(), String> {
    let client = Client::new();
    match service {
        Service::Gateway {
            listen,
            ratings,
            reviews,
            details,
        } => {
            let gateway = gateway::Gateway::new(client, ratings, reviews, details);
            server::serve("gateway", listen.address(), gateway).await
        }
        Service::Productpage {
            listen,
            details,
            reviews,
        } => {
            let page = productpage::ProductPage {
                client,
                details,
                reviews,
            };
            server::serve("productpage", listen.address(), page).await
        }
        Service::Reviews { listen, ratings } => {
            let reviews = reviews::Reviews { client, ratings };
            server::serve("reviews", listen.address(), reviews).await
        }
        Service::Ratings { listen, database } => {
            let store = store::Store::open(&database.unwrap_or_else(own_database))?;
            server::serve("ratings", listen.address(), ratings::Ratings::new(store)).await
        }
        Service::Details { listen } => {
            server::serve("details", listen.address(), details::Details).await
        }
        Service::Echo {
            listen,
            name,
            status,
        } => {
            let echo = echo::Echo::new(name, status);
            server::serve("echo", listen.address(), echo).await
        }
        Service::Authorize {
            listen,
            token,
            user,
        } => {
            let authorize = authorize::Authorize::new(token, &user)?;
            server::serve("authorize", listen.address(), authorize).await
        }
        Service::Collect { listen } => {
            server::serve("collect", listen.address(), collect::Collect::new()).await
        }
        Service::Greet { listen, name } => greet::serve(listen.address(), name).await,
        Service::Load {
            listen,
            lanes,
            pause,
            manner,
            urls,
        } => {
            let load = load::Load::start(&urls, &manner, lanes, Duration::from_millis(pause))?;
            server::serve("load", listen.address(), load).await
        }
        Service::Fetch { headers, url } => talk::fetch(&url, headers).await,
        Service::Talk {
            headers,
            wait,
            url,
            words,
        } => talk::talk(&url, words, headers, wait).await,
    }
}

fn status(text: &str) -> Result<StatusCode, String> {
    let code = text.parse().ok().filter(|code| (200..=599).contains(code));
    let code = code.ok_or("expected 200 to 599")?;
    StatusCode::from_u16(code).map_err(|e| e.to_string())
}

/// Where the mesh, or systemd, lets it keep things; else here.
fn own_database() -> PathBuf {
    let directory = std::env::var_os("STATE_DIRECTORY").unwrap_or_default();
    PathBuf::from(directory).join("ratings.redb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_service_has_the_port_of_the_manifest() {
        let port = |service: &str| {
            let port = match Cli::parse_from(["bookinfo", service]).service {
                Service::Gateway { listen, .. } => listen.address().port(),
                Service::Productpage { listen, .. } => listen.address().port(),
                Service::Reviews { listen, .. } => listen.address().port(),
                Service::Ratings { listen, .. } => listen.address().port(),
                Service::Details { listen } => listen.address().port(),
                Service::Echo { listen, .. } => listen.address().port(),
                _ => unreachable!(),
            };
            (service.to_owned(), port)
        };
        let services = [
            "gateway",
            "productpage",
            "reviews",
            "ratings",
            "details",
            "echo",
        ];
        let ports = [10000, 9080, 8102, 8101, 8103, 8104];
        let expected = services.map(str::to_owned).into_iter().zip(ports);
        assert!(services.into_iter().map(port).eq(expected));
    }
}
