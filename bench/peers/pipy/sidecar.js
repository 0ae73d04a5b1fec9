// One sidecar of a pair for Pipy 1.x: HTTP/1.1, mutual TLS where its configuration says so, pooled
// connections, one counter. TULLE_BENCH_SIDECAR names the configuration, which `tulle bench` writes:
//
//   listen, next, admin   addresses
//   certificate, key      its own, PEM
//   roots                 of the other side, PEM
//   caller                common name that may connect, over TLS; null: plaintext
//   server                common name that `next` must have, over TLS; null: plaintext
//
// Pipy cannot match a SPIFFE id, so common names stand in for identities.

var config = JSON.decode(os.readFile(os.env.TULLE_BENCH_SIDECAR))

var requests = 0
var verified = 0
var refused = 0

// A peer without a certificate is refused by `trusted` alone.
function tls(name) {
  return {
    minVersion: 'TLS1.3',
    maxVersion: 'TLS1.3',
    certificate: {
      cert: new crypto.Certificate(os.readFile(config.certificate)),
      key: new crypto.PrivateKey(os.readFile(config.key)),
    },
    trusted: [new crypto.Certificate(os.readFile(config.roots))],
    verify: function (ok, certificate) {
      if (ok && certificate.subject.commonName === name) {
        verified += 1
        return true
      }
      refused += 1
      return false
    },
  }
}

var pool = new algo.LoadBalancer([config.next])
var $connection

function forward($) {
  return $.demuxHTTP().to($ => $
    .handleMessageStart(function (message) {
      requests += 1
      if (config.caller) {
        message.head.headers['x-forwarded-client-cert'] = 'Subject="CN=' + config.caller + '"'
      }
    })
    .muxHTTP(() => $connection = pool.allocate()).to($ =>
      config.server
        ? $.connectTLS(tls(config.server)).to($ => $.connect(() => $connection.target))
        : $.connect(() => $connection.target)
    )
    .onEnd(() => $connection.free())
  )
}

pipy.listen(config.listen, $ =>
  config.caller ? $.acceptTLS(tls(config.caller)).to(forward) : forward($)
)

pipy.listen(config.admin, $ => $
  .serveHTTP(() => new Message(JSON.encode({ requests, verified, refused })))
)
