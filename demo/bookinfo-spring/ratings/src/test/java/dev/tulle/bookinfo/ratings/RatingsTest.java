package dev.tulle.bookinfo.ratings;

import static org.assertj.core.api.Assertions.assertThat;

import java.util.Map;
import org.junit.jupiter.api.Test;
import org.springframework.beans.factory.annotation.Autowired;
import org.springframework.boot.test.context.SpringBootTest;
import org.springframework.boot.test.context.SpringBootTest.WebEnvironment;
import org.springframework.boot.test.web.client.TestRestTemplate;
import org.springframework.http.HttpStatus;

@SpringBootTest(webEnvironment = WebEnvironment.RANDOM_PORT)
class RatingsTest {

    private static final String SEEDED = "/ratings/2099a055-1e21-46ef-825e-9e0de93554ea";

    @Autowired
    private TestRestTemplate client;

    @Test
    void theSeededRatingIsThere() {
        assertThat(client.getForObject("/health", String.class)).isEqualTo("ok");
        var rating = client.getForObject(SEEDED, Map.class);
        assertThat(rating).containsEntry("rating", 5).containsEntry("id", SEEDED.substring("/ratings/".length()));
    }

    @Test
    void whatIsPostedIsThere() {
        var posted = Map.of(
                "productId", "a071c269-369c-4f79-be03-6a41f27d6b5f",
                "reviewerId", "9bc908be-0717-4eab-bb51-ea14f669ef20",
                "rating", 3);
        var created = client.postForEntity("/ratings", posted, Map.class);
        assertThat(created.getStatusCode()).isEqualTo(HttpStatus.CREATED);
        var read = client.getForObject("/ratings/" + created.getBody().get("id"), Map.class);
        assertThat(read).isEqualTo(created.getBody()).containsAllEntriesOf(posted);
    }

    @Test
    void whatIsNotThereOrNotARatingIsSaid() {
        var absent = client.getForEntity("/ratings/00000000-0000-0000-0000-000000000000", Map.class);
        assertThat(absent.getStatusCode()).isEqualTo(HttpStatus.NOT_FOUND);
        assertThat(client.getForEntity("/ratings/x", Map.class).getStatusCode()).isEqualTo(HttpStatus.BAD_REQUEST);
        var six = client.postForEntity("/ratings", Map.of("rating", 6), Map.class);
        assertThat(six.getStatusCode()).isEqualTo(HttpStatus.BAD_REQUEST);
    }
}
