package dev.tulle.bookinfo.ratings;

import jakarta.validation.Valid;
import java.net.URI;
import java.util.UUID;
import org.springframework.http.HttpStatus;
import org.springframework.http.ResponseEntity;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.PathVariable;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RequestBody;
import org.springframework.web.bind.annotation.RestController;
import org.springframework.web.server.ResponseStatusException;

/** The service's HTTP interface. */
@RestController
public class RatingController {

    private final RatingRepository ratings;

    public RatingController(RatingRepository ratings) {
        this.ratings = ratings;
    }

    @GetMapping("/ratings/{id}")
    public Rating get(@PathVariable UUID id) {
        return ratings.findById(id)
                .orElseThrow(() -> new ResponseStatusException(HttpStatus.NOT_FOUND, "there is no rating " + id));
    }

    @PostMapping("/ratings")
    public ResponseEntity<Rating> post(@Valid @RequestBody Rating rating) {
        rating.setId(UUID.randomUUID());
        Rating stored = ratings.save(rating);
        return ResponseEntity.created(URI.create("/ratings/" + stored.getId())).body(stored);
    }

    /** Ready when the database answers. */
    @GetMapping("/health")
    public String health() {
        ratings.count();
        return "ok";
    }
}
