package dev.tulle.bookinfo.gateway;

import io.netty.resolver.DefaultAddressResolverGroup;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.cloud.gateway.config.HttpClientCustomizer;
import org.springframework.cloud.gateway.route.RouteLocator;
import org.springframework.cloud.gateway.route.builder.RouteLocatorBuilder;
import org.springframework.context.annotation.Bean;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.RestController;

/** The API gateway: {@code /bookinfo-ratings/…} goes to ratings as {@code /…}. */
@SpringBootApplication
@RestController
public class GatewayApplication {

    public static void main(String[] args) {
        SpringApplication.run(GatewayApplication.class, args);
    }

    /** @param ratings where ratings answers: host:port or http://host:port */
    @Bean
    RouteLocator routes(RouteLocatorBuilder routes, @Value("${RATINGS_URL:ratings:8101}") String ratings) {
        return routes.routes()
                .route("ratings", route -> route.path("/bookinfo-ratings/**")
                        .filters(filters -> filters.stripPrefix(1))
                        .uri(url(ratings)))
                .build();
    }

    /**
     * Names are resolved as every program of the host does it. Netty's own resolver asks a name
     * server for what /etc/hosts has, when the answer there is of the other address family.
     */
    @Bean
    HttpClientCustomizer resolveAsTheHostDoes() {
        return client -> client.resolver(DefaultAddressResolverGroup.INSTANCE);
    }

    @GetMapping("/health")
    String health() {
        return "ok";
    }

    static String url(String address) {
        return address.contains("://") ? address : "http://" + address;
    }
}
