CREATE TABLE goods (name TEXT, what TEXT, pence INTEGER);
INSERT INTO goods VALUES
  ('Assam', 'strong and malty', 450),
  ('Darjeeling', 'light, first flush', 780),
  ('Sencha', 'green, grassy', 620),
  ('Rooibos', 'no tea at all, but red', 390);
CREATE TABLE accounts (name TEXT, role TEXT, password_sha1 TEXT);
INSERT INTO accounts VALUES
  ('alice', 'customer', '5baa61e4c9b93f3f0682250b6cf8331b7ee68fd8'),
  ('bob', 'customer', '7c4a8d09ca3762af61e59520943dc26494f8941b'),
  ('marguerite', 'keeper', '8843d7f92416211de9ebb963ff4ce28125932878');
CREATE TABLE orders (account TEXT, goods TEXT, at TEXT DEFAULT CURRENT_TIMESTAMP);
