package dev.tulle.bookinfo.ratings;

import java.util.UUID;
import org.springframework.data.jpa.repository.JpaRepository;

/** Ratings in the database. */
public interface RatingRepository extends JpaRepository<Rating, UUID> {
}
