package dev.tulle.bookinfo.gateway;

import static org.assertj.core.api.Assertions.assertThat;

import java.net.InetSocketAddress;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.Test;
import org.springframework.beans.factory.annotation.Autowired;
import org.springframework.boot.test.context.SpringBootTest;
import org.springframework.boot.test.context.SpringBootTest.WebEnvironment;
import org.springframework.test.context.DynamicPropertyRegistry;
import org.springframework.test.context.DynamicPropertySource;
import org.springframework.test.web.reactive.server.WebTestClient;
import reactor.netty.DisposableServer;
import reactor.netty.http.server.HttpServer;

@SpringBootTest(webEnvironment = WebEnvironment.RANDOM_PORT)
class GatewayTest {

    /** Ports from which ratings was called: one for each connection. */
    private static final Set<Integer> CALLED_FROM = ConcurrentHashMap.newKeySet();

    /** A ratings service that answers the path it was asked for. */
    private static final DisposableServer RATINGS = HttpServer.create()
            .host("127.0.0.1")
            .port(0)
            .handle((request, response) -> {
                CALLED_FROM.add(((InetSocketAddress) request.remoteAddress()).getPort());
                return response.sendString(reactor.core.publisher.Mono.just(request.uri()));
            })
            .bindNow();

    @Autowired
    private WebTestClient client;

    @DynamicPropertySource
    static void addresses(DynamicPropertyRegistry properties) {
        properties.add("RATINGS_URL", () -> "127.0.0.1:" + RATINGS.port());
    }

    @AfterAll
    static void end() {
        RATINGS.disposeNow();
    }

    @Test
    void thePrefixIsTakenOffAndTheConnectionIsKept() {
        for (int i = 0; i < 5; i++) {
            client.get().uri("/bookinfo-ratings/ratings/7?x=1").exchange()
                    .expectStatus().isOk()
                    .expectBody(String.class).isEqualTo("/ratings/7?x=1");
        }
        assertThat(CALLED_FROM).hasSize(1);
    }

    @Test
    void onlyThatPrefixIsRouted() {
        client.get().uri("/bookinfo-ratingsX/ratings/7").exchange().expectStatus().isNotFound();
        client.get().uri("/health").exchange().expectStatus().isOk();
    }

    @Test
    void anAddressMayBeWrittenWithAndWithoutItsScheme() {
        assertThat(GatewayApplication.url("ratings:8101")).isEqualTo("http://ratings:8101");
        assertThat(GatewayApplication.url("http://127.0.0.1:81")).isEqualTo("http://127.0.0.1:81");
    }
}
