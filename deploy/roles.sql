-- Roles of a Postgres database, run once in it by an administrator, before the first `homophily migrate`:
--     psql --set ON_ERROR_STOP=1 --dbname homophily --file deploy/roles.sql
-- Set passwords afterwards with \password in psql, so that they are in no file and no log.

-- Owns the tables. Only `homophily migrate` uses it.
CREATE ROLE homophily_owner LOGIN;
-- For APIs, workers and trackers: reads and writes rows, and cannot change, add or drop a table.
CREATE ROLE homophily LOGIN;
-- For KEDA: sees the jobs' states and nothing else. `homophily migrate` comes before its GRANT, see deploy/README.md.
CREATE ROLE homophily_scaler LOGIN;

REVOKE CREATE ON SCHEMA public FROM PUBLIC;
GRANT USAGE, CREATE ON SCHEMA public TO homophily_owner;
GRANT USAGE ON SCHEMA public TO homophily, homophily_scaler;
ALTER DEFAULT PRIVILEGES FOR ROLE homophily_owner IN SCHEMA public
    GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO homophily;
ALTER DEFAULT PRIVILEGES FOR ROLE homophily_owner IN SCHEMA public
    GRANT USAGE ON SEQUENCES TO homophily;
