-- The ratings that exist from the start: the same as those of demo/bookinfo.
INSERT INTO ratings (id, product_id, reviewer_id, rating) VALUES
  ('2099a055-1e21-46ef-825e-9e0de93554ea', 'a071c269-369c-4f79-be03-6a41f27d6b5f', '9bc908be-0717-4eab-bb51-ea14f669ef20', 5),
  ('7e3b7c52-9d0a-4a3f-9c43-0f1a6d2b8e75', 'a071c269-369c-4f79-be03-6a41f27d6b5f', '5d4f6a8e-14cb-4b3c-8a77-1c7f2f0a9d34', 4);
