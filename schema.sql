-- Every table of Cairn, as numbered migrations. A line "-- migration N: title" begins one; db.go
-- applies those that a database lacks, all in one transaction under an advisory lock. A migration
-- that has been released is never edited: a change is a new migration at the end.

-- migration 1: accounts, roles, messages, datasets

-- A person or a service account. Ids are random, so that none is ever used twice, not even after a
-- backup was restored. credential_version rises with every change of password or status: a login
-- that began before such a change cannot open a session after it.
CREATE TABLE users (
  id                 uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
  username           text        COLLATE "C" NOT NULL,
  email              text        COLLATE "C",
  display_name       text        NOT NULL DEFAULT '',
  status             text        NOT NULL,
  password_hash      text,
  credential_version bigint      NOT NULL DEFAULT 1,
  created_at         timestamptz NOT NULL DEFAULT now(),
  updated_at         timestamptz NOT NULL DEFAULT now(),
  last_login_at      timestamptz,
  CONSTRAINT users_username_key UNIQUE (username),
  CONSTRAINT users_email_key UNIQUE (email),
  CONSTRAINT users_username_check CHECK (username ~ '^[a-z0-9][a-z0-9._-]{1,62}$'),
  CONSTRAINT users_status_check CHECK (status IN ('active', 'disabled', 'pending'))
);

-- Roles are rows; what a permission means is in the code. The role "admin" has no rows in
-- role_permissions: it holds every permission, also those added later.
CREATE TABLE roles (
  id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name        text        COLLATE "C" NOT NULL,
  description text        NOT NULL DEFAULT '',
  created_at  timestamptz NOT NULL DEFAULT now(),
  CONSTRAINT roles_name_key UNIQUE (name)
);

CREATE TABLE role_permissions (
  role_id    bigint NOT NULL REFERENCES roles ON DELETE CASCADE,
  permission text   COLLATE "C" NOT NULL,
  PRIMARY KEY (role_id, permission)
);

CREATE TABLE user_roles (
  user_id uuid   NOT NULL REFERENCES users ON DELETE CASCADE,
  role_id bigint NOT NULL REFERENCES roles ON DELETE RESTRICT,
  PRIMARY KEY (user_id, role_id)
);
CREATE INDEX user_roles_role_id_idx ON user_roles (role_id);

INSERT INTO roles (name, description) VALUES
  ('admin', 'Holds every permission.'),
  ('member', 'Given at registration.');
INSERT INTO role_permissions (role_id, permission)
  SELECT id, 'dataset.read' FROM roles WHERE name = 'member';

-- One row a login. Nothing secret is stored: a refresh token is the id and the generation with a
-- MAC over both. rotated_at is when the generation was last raised; idle_expires_at moves with it.
CREATE TABLE sessions (
  id              uuid        PRIMARY KEY,
  user_id         uuid        NOT NULL REFERENCES users ON DELETE CASCADE,
  generation      bigint      NOT NULL DEFAULT 1,
  created_at      timestamptz NOT NULL DEFAULT now(),
  rotated_at      timestamptz NOT NULL DEFAULT now(),
  idle_expires_at timestamptz NOT NULL,
  expires_at      timestamptz NOT NULL,
  ended_at        timestamptz,
  end_reason      text,
  device          text        NOT NULL DEFAULT '', -- where it was opened, for its owner to recognise it
  address         text        NOT NULL DEFAULT ''
);
CREATE INDEX sessions_user_id_idx ON sessions (user_id);

-- At most one password token a user: a newer one replaces it. Only its SHA-256 is stored.
CREATE TABLE password_tokens (
  user_id    uuid        PRIMARY KEY REFERENCES users ON DELETE CASCADE,
  token_hash bytea       NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  expires_at timestamptz NOT NULL,
  CONSTRAINT password_tokens_token_hash_key UNIQUE (token_hash)
);

-- Announcements. The author's name is kept beside the reference, so that it outlives the account.
CREATE TABLE system_messages (
  id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  title      text        NOT NULL,
  body       text        NOT NULL,
  severity   text        NOT NULL,
  publish_at timestamptz NOT NULL,
  author_id  uuid        REFERENCES users ON DELETE SET NULL,
  author     text        NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  CONSTRAINT system_messages_severity_check CHECK (severity IN ('info', 'warning', 'critical'))
);
CREATE INDEX system_messages_publish_at_id_idx ON system_messages (publish_at, id);
CREATE INDEX system_messages_author_id_idx ON system_messages (author_id);

-- Read state: everything up to the user's watermark, and above it one row a message.
CREATE TABLE system_message_watermarks (
  user_id    uuid        PRIMARY KEY REFERENCES users ON DELETE CASCADE,
  publish_at timestamptz NOT NULL,
  message_id bigint      NOT NULL
);

CREATE TABLE system_message_reads (
  user_id    uuid        NOT NULL REFERENCES users ON DELETE CASCADE,
  message_id bigint      NOT NULL REFERENCES system_messages ON DELETE CASCADE,
  read_at    timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (user_id, message_id)
);
CREATE INDEX system_message_reads_message_id_idx ON system_message_reads (message_id);

-- A directory of elevation files. path is relative to the first dataset root, or absolute below another one.
CREATE TABLE datasets (
  id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name        text        COLLATE "C" NOT NULL,
  path        text        COLLATE "C" NOT NULL,
  description text        NOT NULL DEFAULT '',
  created_at  timestamptz NOT NULL DEFAULT now(),
  updated_at  timestamptz NOT NULL DEFAULT now(),
  CONSTRAINT datasets_name_key UNIQUE (name),
  CONSTRAINT datasets_path_key UNIQUE (path)
);

-- One file of a dataset. path orders bytewise and is unique in its dataset. The arrays are
-- transform [a b c d e f], native_bbox [minx miny maxx maxy], bbox [west south east north].
CREATE TABLE elevation_dataset_file_meta (
  id              bigint           GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  dataset_id      bigint           NOT NULL REFERENCES datasets ON DELETE CASCADE,
  path            text             COLLATE "C" NOT NULL,
  size_bytes      bigint           NOT NULL,
  modified_ns     bigint           NOT NULL,
  format          text,
  status          text             NOT NULL,
  reason          text,
  width           bigint,
  height          bigint,
  bands           bigint,
  sample_type     text,
  nodata          text,
  pixel_is        text,
  transform       double precision[],
  native_bbox     double precision[],
  crs             text,
  crs_name        text,
  vertical_crs    text,
  bbox            double precision[],
  bbox_accuracy_m double precision,
  resolution_m    double precision,
  source          text,
  warnings        text[]           NOT NULL,
  analyzed_at     timestamptz      NOT NULL,
  CONSTRAINT elevation_dataset_file_meta_path_key UNIQUE (dataset_id, path),
  CONSTRAINT elevation_dataset_file_meta_status_check CHECK (status IN
    ('ok', 'no_bbox', 'no_georef', 'sidecar', 'unsupported', 'corrupt', 'unreadable')),
  CONSTRAINT elevation_dataset_file_meta_ok_check CHECK
    ((status = 'ok') = (bbox IS NOT NULL) AND (bbox IS NULL OR native_bbox IS NOT NULL))
);

-- The instances that use this database, each alive until live_until and without a gap since alive_since.
-- Of their keys the fingerprints, the signer's apart, with a row for each that an instance has signed with.
-- A row outlives its instance: seen_at says when a key last signed.
CREATE TABLE instances (
  id           text        NOT NULL,
  signer       text        NOT NULL,
  fingerprints text[]      NOT NULL,
  seen_at      timestamptz NOT NULL,
  alive_since  timestamptz NOT NULL,
  live_until   timestamptz NOT NULL,
  PRIMARY KEY (id, signer)
);

-- The analysis task. It lives here, not in a process: an instance claims the walk, lists the directory
-- and writes chunks, walked_to being the last path written. The analysis has ended when the walk has and
-- chunks_left is 0. A claim is its holder's while the instance lives; the token tells one from the next.
CREATE TABLE analyses (
  id           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  dataset_id   bigint      NOT NULL REFERENCES datasets ON DELETE CASCADE,
  state        text        NOT NULL DEFAULT 'queued',
  force        boolean     NOT NULL,
  failure_code text,
  failure      text,
  requested_by text        NOT NULL,
  queued_at    timestamptz NOT NULL DEFAULT now(),
  started_at   timestamptz,
  finished_at  timestamptz,
  walker       text,
  walker_token uuid,
  walked_to    text        COLLATE "C" NOT NULL DEFAULT '',
  chunks_left  bigint      NOT NULL DEFAULT 0,
  total        bigint      NOT NULL DEFAULT 0,
  added        bigint      NOT NULL DEFAULT 0,
  changed      bigint      NOT NULL DEFAULT 0,
  unchanged    bigint      NOT NULL DEFAULT 0,
  removed      bigint      NOT NULL DEFAULT 0,
  failed       bigint      NOT NULL DEFAULT 0,
  warnings     text[]      NOT NULL DEFAULT '{}',
  CONSTRAINT analyses_state_check CHECK (state IN
    ('queued', 'walking', 'reading', 'succeeded', 'failed', 'canceled')),
  CONSTRAINT analyses_finished_check CHECK
    ((finished_at IS NOT NULL) = (state IN ('succeeded', 'failed', 'canceled')))
);
CREATE INDEX analyses_dataset_id_id_idx ON analyses (dataset_id, id);
CREATE UNIQUE INDEX analyses_running_key ON analyses (dataset_id) WHERE finished_at IS NULL;

-- The interval (from_path, to_path] of a dataset's paths, with every file the walk found in it; no
-- to_path means to the end. Rows of the interval that are not in files go when it is stored, if their
-- files are really gone. deaths counts the instances that died while they held it.
CREATE TABLE analysis_chunks (
  id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  analysis_id bigint      NOT NULL REFERENCES analyses ON DELETE CASCADE,
  from_path   text        COLLATE "C" NOT NULL,
  to_path     text        COLLATE "C",
  files       json        NOT NULL,
  reader      text,
  token       uuid,
  deaths      integer     NOT NULL DEFAULT 0,
  failures    integer     NOT NULL DEFAULT 0
);
CREATE INDEX analysis_chunks_analysis_id_idx ON analysis_chunks (analysis_id);

-- migration 2: API tokens, throttling, audit, notifications

-- What a script signs in with. The token itself is not stored, only its SHA-256. It may do at most what
-- its owner may at the time of use.
CREATE TABLE api_tokens (
  id           uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
  user_id      uuid        NOT NULL REFERENCES users ON DELETE CASCADE,
  name         text        COLLATE "C" NOT NULL,
  token_hash   bytea       NOT NULL,
  permissions  text[]      NOT NULL,
  created_at   timestamptz NOT NULL DEFAULT now(),
  expires_at   timestamptz NOT NULL,
  last_used_at timestamptz,
  CONSTRAINT api_tokens_token_hash_key UNIQUE (token_hash),
  CONSTRAINT api_tokens_name_key UNIQUE (user_id, name)
);

-- Attempts to guess a password, by an HMAC of what they are counted for: an account from an address (pair), an
-- address, or an account. last_at is when the last counted one began, known that the pair has signed in before.
CREATE TABLE throttles (
  key        bytea       PRIMARY KEY,
  kind       text        NOT NULL,
  attempts   bigint      NOT NULL DEFAULT 0,
  last_at    timestamptz NOT NULL DEFAULT now(),
  known      boolean     NOT NULL DEFAULT false,
  expires_at timestamptz NOT NULL,
  CONSTRAINT throttles_kind_check CHECK (kind IN ('pair', 'address', 'account'))
);
CREATE INDEX throttles_expires_at_idx ON throttles (expires_at);

-- What happened to accounts, by whom. Rows can only be added; only retention takes some away, those before a
-- checkpoint.
CREATE TABLE audit_log (
  id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at         timestamptz NOT NULL DEFAULT clock_timestamp(),
  actor_id   uuid,
  actor      text        NOT NULL,
  credential text        NOT NULL,
  address    text        NOT NULL,
  request_id text        NOT NULL,
  action     text        NOT NULL,
  target     text        NOT NULL,
  before     jsonb,
  after      jsonb
);

CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP <> 'TRUNCATE' AND current_setting('cairn.retention', true) = 'on' THEN
    RETURN NULL;
  END IF;
  RAISE EXCEPTION 'rows of % can only be added', TG_TABLE_NAME;
END $$;
CREATE TRIGGER audit_log_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_log
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- Every instance caches who a credential belongs to and what it may do. What takes something away or
-- changes what is shown is told to all of them, on cairn_principals: the id of a user, session or token,
-- or, without an argument, nothing, for all of them. A refresh or a use tells nothing: NOTIFY serialises commits.
CREATE FUNCTION tell_principals() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_notify('cairn_principals', coalesce(to_jsonb(OLD), to_jsonb(NEW)) ->> TG_ARGV[0]);
  RETURN NULL;
END $$;
CREATE TRIGGER users_tell AFTER DELETE OR UPDATE OF username, email, display_name, status, credential_version, last_login_at ON users
  FOR EACH ROW EXECUTE FUNCTION tell_principals('id');
CREATE FUNCTION tell_role_holders() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF (SELECT count(*) FROM touched) > 100 THEN
    PERFORM pg_notify('cairn_principals', '');
  ELSE
    PERFORM pg_notify('cairn_principals', user_id::text) FROM touched;
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER user_roles_tell_insert AFTER INSERT ON user_roles
  REFERENCING NEW TABLE AS touched FOR EACH STATEMENT EXECUTE FUNCTION tell_role_holders();
CREATE TRIGGER user_roles_tell_delete AFTER DELETE ON user_roles
  REFERENCING OLD TABLE AS touched FOR EACH STATEMENT EXECUTE FUNCTION tell_role_holders();
CREATE TRIGGER sessions_tell AFTER DELETE OR UPDATE OF ended_at ON sessions
  FOR EACH ROW WHEN (OLD.ended_at IS NULL) EXECUTE FUNCTION tell_principals('id');
CREATE TRIGGER api_tokens_tell AFTER DELETE OR UPDATE OF permissions, name, expires_at ON api_tokens
  FOR EACH ROW EXECUTE FUNCTION tell_principals('id');
CREATE TRIGGER roles_tell AFTER UPDATE OR DELETE ON roles
  FOR EACH STATEMENT EXECUTE FUNCTION tell_principals();
CREATE TRIGGER role_permissions_tell AFTER INSERT OR UPDATE OR DELETE ON role_permissions
  FOR EACH STATEMENT EXECUTE FUNCTION tell_principals();

-- migration 3: administration

-- A user name is never given out again, neither after its user was deleted nor after he was renamed.
CREATE TABLE retired_usernames (
  username text COLLATE "C" PRIMARY KEY
);
CREATE FUNCTION retire_username() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.username IS DISTINCT FROM OLD.username THEN
    INSERT INTO retired_usernames SELECT OLD.username WHERE OLD.username IS NOT NULL ON CONFLICT DO NOTHING;
    IF EXISTS (SELECT FROM retired_usernames r WHERE r.username = NEW.username) THEN
      RAISE unique_violation USING CONSTRAINT = 'users_username_key';
    END IF;
  END IF;
  RETURN coalesce(NEW, OLD); -- OLD is null at an INSERT, NEW at a DELETE
END $$;
CREATE TRIGGER users_retire BEFORE INSERT OR DELETE OR UPDATE OF username ON users
  FOR EACH ROW EXECUTE FUNCTION retire_username();

-- For the list of users: an index for each order, and one for parts of names (q).
CREATE EXTENSION IF NOT EXISTS pg_trgm;
CREATE INDEX users_created_at_id_idx ON users (created_at, id);
CREATE INDEX users_last_login_at_id_idx ON users ((coalesce(last_login_at, '-infinity')), id);
CREATE INDEX users_trgm_idx ON users USING gin
  (username gin_trgm_ops, email gin_trgm_ops, lower(display_name) gin_trgm_ops);

-- Whom a message is for: everybody, or who holds one of the roles now; of a role that is removed nobody. One is
-- shown from publish_at to expires_at, unless it is retracted, to who had joined by then or to new users too.
ALTER TABLE system_messages
  ADD COLUMN role_ids          bigint[],
  ADD COLUMN include_new_users boolean     NOT NULL DEFAULT false,
  ADD COLUMN expires_at        timestamptz,
  ADD COLUMN retracted_at      timestamptz,
  ADD COLUMN updated_at        timestamptz NOT NULL DEFAULT now();
CREATE INDEX system_message_watermarks_publish_at_idx ON system_message_watermarks (publish_at);

-- What is looked for in the audit log.
CREATE INDEX audit_log_actor_idx ON audit_log (actor, id);
CREATE INDEX audit_log_target_idx ON audit_log (target, id);
CREATE INDEX audit_log_request_id_idx ON audit_log (request_id, id);

-- The seals of the audit log's rows, in a sequence without a gap: mac is an HMAC of the seal before and of the
-- row, by the key named kid. Rows older than a checkpoint may be gone, with their seals; its own mac says so.
CREATE TABLE audit_seals (
  seq        bigint PRIMARY KEY,
  audit_id   bigint NOT NULL,
  kid        text   NOT NULL,
  mac        bytea  NOT NULL,
  checkpoint bytea,
  CONSTRAINT audit_seals_audit_id_key UNIQUE (audit_id)
);

-- The rows that wait for their seal, put here by each insert: a row that is neither here nor sealed was not
-- added by Cairn.
CREATE TABLE audit_unsealed (
  audit_id bigint PRIMARY KEY
);
CREATE FUNCTION queue_for_seal() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO audit_unsealed VALUES (NEW.id);
  RETURN NULL;
END $$;
CREATE TRIGGER audit_log_queue AFTER INSERT ON audit_log
  FOR EACH ROW EXECUTE FUNCTION queue_for_seal();

CREATE TRIGGER audit_seals_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_seals
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
INSERT INTO audit_unsealed SELECT id FROM audit_log;

-- migration 4: incremental analysis

-- What a row was made of besides the file's size and time: what lay beside the file, as a sum that changes with it,
-- and the reader; 0 where the file was too new. What is as it was is not read again.
ALTER TABLE elevation_dataset_file_meta
  ADD COLUMN sidecars bigint NOT NULL DEFAULT 0,
  ADD COLUMN reader_version integer NOT NULL DEFAULT 0;

-- The files of a chunk, as columns.
ALTER TABLE analysis_chunks
  ADD COLUMN paths text[] COLLATE "C" NOT NULL DEFAULT '{}',
  ADD COLUMN sizes bigint[] NOT NULL DEFAULT '{}',
  ADD COLUMN modified bigint[] NOT NULL DEFAULT '{}',
  ADD COLUMN sidecars bigint[] NOT NULL DEFAULT '{}';
UPDATE analysis_chunks
SET (paths, sizes, modified, sidecars) = (
  SELECT coalesce(array_agg(e ->> 'path'), '{}'), coalesce(array_agg((e ->> 'size')::bigint), '{}'),
    coalesce(array_agg((e ->> 'modified')::bigint), '{}'), coalesce(array_agg(0::bigint), '{}')
  FROM json_array_elements(files) e
);
ALTER TABLE analysis_chunks
  DROP COLUMN files,
  ALTER COLUMN paths SET STORAGE EXTERNAL,
  ALTER COLUMN sizes SET STORAGE EXTERNAL,
  ALTER COLUMN modified SET STORAGE EXTERNAL,
  ALTER COLUMN sidecars SET STORAGE EXTERNAL;
CREATE INDEX analysis_chunks_failures_id_idx ON analysis_chunks (failures, id);

-- blind are the instances that do not see the dataset's directory. expected is how many files the analysis before
-- found. failures counts attempts of a walk that the database refused.
ALTER TABLE analyses
  ADD COLUMN blind text[] NOT NULL DEFAULT '{}',
  ADD COLUMN expected bigint NOT NULL DEFAULT 0,
  ADD COLUMN failures integer NOT NULL DEFAULT 0;

-- Which files an analysis found added, changed and removed: a row for each chunk that had such.
CREATE TABLE analysis_changes (
  analysis_id bigint NOT NULL REFERENCES analyses ON DELETE CASCADE,
  from_path   text   COLLATE "C" NOT NULL,
  added       text[] COLLATE "C" NOT NULL,
  changed     text[] COLLATE "C" NOT NULL,
  removed     text[] COLLATE "C" NOT NULL,
  PRIMARY KEY (analysis_id, from_path)
);

-- migration 5: spatial queries

-- A file's bbox as a box in degrees that is not cut at 180°: one that crosses it ends east of 180.
CREATE FUNCTION degrees_box(bbox double precision[]) RETURNS box LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT box(point(bbox[1], bbox[2]), point(bbox[3] + CASE WHEN bbox[3] < bbox[1] THEN 360 ELSE 0 END, bbox[4]))
$$;

-- What covers a place; and the files that are not as they should be, which are few. An index of an expression
-- follows the row by itself, whoever writes it.
CREATE EXTENSION IF NOT EXISTS btree_gist;
CREATE INDEX elevation_dataset_file_meta_box_idx ON elevation_dataset_file_meta
  USING gist (dataset_id, degrees_box(bbox)) WHERE bbox IS NOT NULL;
CREATE INDEX elevation_dataset_file_meta_status_idx ON elevation_dataset_file_meta (dataset_id, status, path)
  WHERE status <> 'ok';

-- migration 6: attempts counted in one write each

-- How long the next attempt has to wait; null: not at all, though another that began later was counted first. 5 for
-- a pair and 100 for an address are free, then the wait doubles from a second to 5 minutes and to 1 minute. After 100
-- failures on an account only addresses it has signed in from are heard, until its row has expired.
CREATE FUNCTION throttle_wait(t throttles, from_known boolean) RETURNS interval LANGUAGE sql STABLE AS $$
  SELECT CASE
    WHEN t.kind = 'pair' AND t.attempts > 5 THEN t.last_at - now() + make_interval(secs => least(2 ^ least(t.attempts - 6, 20), 300))
    WHEN t.kind = 'address' AND t.attempts > 100 THEN t.last_at - now() + make_interval(secs => least(2 ^ least(t.attempts - 101, 20), 60))
    WHEN t.kind = 'account' AND t.attempts >= 100 AND NOT from_known THEN greatest(t.expires_at - now(), '1 second')
  END
$$;

-- Counts an attempt and returns null, or how long it has to wait: then it is not counted. A row expires at a full
-- ten minutes, for what is indexed is dear to change.
CREATE OR REPLACE FUNCTION throttle(of_key bytea, of_kind text, life interval, from_known boolean) RETURNS interval LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO throttles AS t (key, kind, attempts, expires_at)
    VALUES (of_key, of_kind, 1, date_bin('10 minutes', now() + life + '10 minutes', 'epoch'))
    ON CONFLICT (key) DO UPDATE
    SET attempts = t.attempts + 1, last_at = now(), expires_at = greatest(t.expires_at, excluded.expires_at)
    WHERE (throttle_wait(t, from_known) > '0') IS NOT TRUE;
  IF FOUND THEN
    RETURN NULL;
  END IF;
  RETURN (SELECT throttle_wait(t, from_known) FROM throttles t WHERE t.key = of_key); -- which is locked
END $$;

-- migration 7: one table of throttling rules, in the program; bursts of refreshes

-- Attempts that cost a password hash, counted for an account, a network or both. Each key is an HMAC, or empty where
-- the row does not count by it. Before next_at no attempt is heard. known: the account has signed in from the network.
-- The rules are in throttle.go. expires_at is a full hour, so that most updates leave its index alone.
DROP FUNCTION throttle(bytea, text, interval, boolean);
DROP FUNCTION throttle_wait(throttles, boolean);
DROP TABLE throttles;
CREATE TABLE throttles (
  account    bytea       NOT NULL,
  network    bytea       NOT NULL,
  attempts   bigint      NOT NULL,
  last_at    timestamptz NOT NULL DEFAULT now(),
  next_at    timestamptz,
  known      boolean     NOT NULL DEFAULT false,
  expires_at timestamptz NOT NULL,
  PRIMARY KEY (account, network)
);
CREATE INDEX throttles_expires_at_idx ON throttles (expires_at);

-- A burst is a series of refreshes within one grace period. It began when burst_generation was replaced, at
-- burst_began_at.
ALTER TABLE sessions
  ADD COLUMN burst_generation bigint      NOT NULL DEFAULT 0,
  ADD COLUMN burst_began_at   timestamptz NOT NULL DEFAULT '-infinity';
