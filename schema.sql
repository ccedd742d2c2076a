-- Every table of Cairn, as numbered migrations. A line "-- migration N: title" begins one; db.go
-- applies those that a database lacks. A migration that has been released is never edited.

-- migration 1: version 0.2.0

CREATE EXTENSION IF NOT EXISTS pg_trgm;    -- for parts of names
CREATE EXTENSION IF NOT EXISTS btree_gist; -- for files by dataset and place

-- A person or a service account. Ids are random, so that none is used twice, even after a restore.
-- credential_version rises when the password or the status changes, when a second factor is enabled
-- or removed, and when all sessions of the user are ended. A login that began before cannot open a
-- session after.
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
  version            uuid        NOT NULL DEFAULT gen_random_uuid(), -- a new one with each change of the row
  CONSTRAINT users_username_key UNIQUE (username),
  CONSTRAINT users_email_key UNIQUE (email),
  CONSTRAINT users_username_check CHECK (username ~ '^[a-z0-9][a-z0-9._-]{1,62}$'),
  CONSTRAINT users_status_check CHECK (status IN ('active', 'disabled', 'pending'))
);
CREATE INDEX users_created_at_id_idx ON users (created_at, id);
CREATE INDEX users_last_login_at_id_idx ON users ((coalesce(last_login_at, '-infinity')), id);
CREATE INDEX users_trgm_idx ON users USING gin
  (username gin_trgm_ops, email gin_trgm_ops, lower(display_name) gin_trgm_ops);

CREATE FUNCTION renew_user_version() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.version := gen_random_uuid();
  RETURN NEW;
END $$;
CREATE TRIGGER users_version BEFORE UPDATE ON users FOR EACH ROW EXECUTE FUNCTION renew_user_version();

-- Names of users who were deleted or renamed. Nobody can get one again.
CREATE TABLE retired_usernames (
  username text COLLATE "C" PRIMARY KEY
);
CREATE FUNCTION retire_username() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.username IS DISTINCT FROM OLD.username THEN -- at a DELETE, NEW is null; at an INSERT, OLD is null
    INSERT INTO retired_usernames SELECT OLD.username WHERE OLD.username IS NOT NULL ON CONFLICT DO NOTHING;
    IF EXISTS (SELECT FROM retired_usernames r WHERE r.username = NEW.username) THEN
      RAISE unique_violation USING CONSTRAINT = 'users_username_key';
    END IF;
  END IF;
  RETURN coalesce(NEW, OLD);
END $$;
CREATE TRIGGER users_retire BEFORE INSERT OR DELETE OR UPDATE OF username ON users
  FOR EACH ROW EXECUTE FUNCTION retire_username();

-- Roles are rows; the meaning of a built-in permission is in the code. The role "admin" has no rows in
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

-- One row. Each change of a role, its permissions or its holders, and of the declared permissions
-- (migration 2), gives it a new version. Instances keep users and their permissions in memory. Such
-- an entry is valid while this version and users.version are unchanged; each request reads both.
CREATE TABLE access_version (
  version uuid NOT NULL
);
INSERT INTO access_version VALUES (gen_random_uuid());
CREATE FUNCTION renew_access_version() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE access_version SET version = gen_random_uuid();
  RETURN NULL;
END $$;
CREATE TRIGGER roles_version AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON roles
  FOR EACH STATEMENT EXECUTE FUNCTION renew_access_version();
CREATE TRIGGER role_permissions_version AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON role_permissions
  FOR EACH STATEMENT EXECUTE FUNCTION renew_access_version();
CREATE TRIGGER user_roles_version AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON user_roles
  FOR EACH STATEMENT EXECUTE FUNCTION renew_access_version();

INSERT INTO roles (name, description) VALUES
  ('admin', 'Holds every permission.'),
  ('member', 'Given at registration.');
INSERT INTO role_permissions (role_id, permission)
  SELECT id, 'dataset.read' FROM roles WHERE name = 'member';

-- One row for each login. Nothing secret is stored: a refresh token is the id and the generation
-- with a MAC over both. rotated_at is when the generation was last raised; for a browser's session,
-- when it was last used, within five minutes. A burst is a series of refreshes within one grace
-- period: see rotateSession. burst_generation is the first generation that it replaced, at
-- burst_began_at.
CREATE TABLE sessions (
  id               uuid        PRIMARY KEY,
  user_id          uuid        NOT NULL REFERENCES users ON DELETE CASCADE,
  generation       bigint      NOT NULL DEFAULT 1,
  created_at       timestamptz NOT NULL DEFAULT now(),
  rotated_at       timestamptz NOT NULL DEFAULT now(),
  burst_generation bigint      NOT NULL DEFAULT 0,
  burst_began_at   timestamptz NOT NULL DEFAULT '-infinity',
  idle_expires_at  timestamptz NOT NULL,
  expires_at       timestamptz NOT NULL,
  ended_at         timestamptz,
  end_reason       text,
  device           text        NOT NULL DEFAULT '', -- the client's User-Agent
  address          text        NOT NULL DEFAULT ''
);
CREATE INDEX sessions_user_id_idx ON sessions (user_id);

-- At most one password token for each user: a newer one replaces it. Only its SHA-256 is stored.
CREATE TABLE password_tokens (
  user_id    uuid        PRIMARY KEY REFERENCES users ON DELETE CASCADE,
  token_hash bytea       NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  expires_at timestamptz NOT NULL,
  CONSTRAINT password_tokens_token_hash_key UNIQUE (token_hash)
);

-- Tokens for scripts. Only the SHA-256 of a token is stored. A token may do what is both in its
-- permissions and in those of its owner at the time of use.
CREATE TABLE api_tokens (
  id           uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
  user_id      uuid        NOT NULL REFERENCES users ON DELETE CASCADE,
  name         text        COLLATE "C" NOT NULL,
  token_hash   bytea       NOT NULL,
  permissions  text[]      NOT NULL,
  created_at   timestamptz NOT NULL DEFAULT now(),
  expires_at   timestamptz NOT NULL,
  last_used_at timestamptz, -- the true last use may be up to a minute later
  CONSTRAINT api_tokens_token_hash_key UNIQUE (token_hash),
  CONSTRAINT api_tokens_name_key UNIQUE (user_id, name)
);

-- Counted attempts. Migration 3 replaces this table.
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

-- The audit log. Rows are added and never changed. Retention deletes those before a checkpoint.
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
CREATE INDEX audit_log_actor_idx ON audit_log (actor, id);
CREATE INDEX audit_log_target_idx ON audit_log (target, id);
CREATE INDEX audit_log_request_id_idx ON audit_log (request_id, id);

-- The seals of the audit log's rows, numbered without a gap: numbers of seals that are lost are not
-- used again. mac is an HMAC of the seal before and of the row, by the key named kid. checkpoint, if
-- it is set, is a MAC which proves that retention deleted this seal's row and the seals before it.
CREATE TABLE audit_seals (
  seq        bigint PRIMARY KEY,
  audit_id   bigint NOT NULL,
  kid        text   NOT NULL,
  mac        bytea  NOT NULL,
  checkpoint bytea,
  CONSTRAINT audit_seals_audit_id_key UNIQUE (audit_id)
);

-- The rows that wait for their seal. Each insert into audit_log adds one.
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

-- Only retention ("cairn audit prune") may change or delete rows: it turns cairn.retention on for its
-- own transaction. This prevents mistakes; the seals detect tampering.
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP <> 'TRUNCATE' AND current_setting('cairn.retention', true) = 'on' THEN
    RETURN NULL;
  END IF;
  RAISE EXCEPTION 'rows of % can only be added', TG_TABLE_NAME;
END $$;
CREATE TRIGGER audit_log_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_log
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER audit_seals_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_seals
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- Announcements. A message is shown from publish_at to expires_at, unless it is retracted. It is
-- for everybody or, with role_ids, for the users who hold one of these roles now; an empty array is
-- for nobody. Users who joined after publish_at see it only with include_new_users. The author's
-- name outlives the account.
CREATE TABLE system_messages (
  id                bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  title             text        NOT NULL,
  body              text        NOT NULL,
  severity          text        NOT NULL,
  publish_at        timestamptz NOT NULL,
  expires_at        timestamptz,
  retracted_at      timestamptz,
  role_ids          bigint[],
  include_new_users boolean     NOT NULL DEFAULT false,
  author_id         uuid        REFERENCES users ON DELETE SET NULL,
  author            text        NOT NULL,
  created_at        timestamptz NOT NULL DEFAULT now(),
  updated_at        timestamptz NOT NULL DEFAULT now(),
  CONSTRAINT system_messages_severity_check CHECK (severity IN ('info', 'warning', 'critical'))
);
CREATE INDEX system_messages_publish_at_id_idx ON system_messages (publish_at, id);
CREATE INDEX system_messages_author_id_idx ON system_messages (author_id);

-- Read messages: every message up to the user's watermark, and one row for each message above it.
CREATE TABLE system_message_watermarks (
  user_id    uuid        PRIMARY KEY REFERENCES users ON DELETE CASCADE,
  publish_at timestamptz NOT NULL,
  message_id bigint      NOT NULL
);
CREATE INDEX system_message_watermarks_publish_at_idx ON system_message_watermarks (publish_at);
CREATE TABLE system_message_reads (
  user_id    uuid        NOT NULL REFERENCES users ON DELETE CASCADE,
  message_id bigint      NOT NULL REFERENCES system_messages ON DELETE CASCADE,
  read_at    timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (user_id, message_id)
);
CREATE INDEX system_message_reads_message_id_idx ON system_message_reads (message_id);

-- A directory of elevation files. path is relative to the first dataset root, or absolute.
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

-- One file of a dataset. The arrays are transform [a b c d e f], native_bbox [minx miny maxx maxy],
-- bbox [west south east north]. A file is not read again while size, time, sidecars (a checksum of
-- the files that belong to it) and reader_version are the same. reader_version is 0 if the file had
-- just been written, or is not a regular file: it is read again next time.
CREATE TABLE elevation_dataset_file_meta (
  id              bigint           GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  dataset_id      bigint           NOT NULL REFERENCES datasets ON DELETE CASCADE,
  path            text             COLLATE "C" NOT NULL,
  size_bytes      bigint           NOT NULL,
  modified_ns     bigint           NOT NULL, -- nanoseconds since 1970
  sidecars        bigint           NOT NULL DEFAULT 0,
  reader_version  integer          NOT NULL DEFAULT 0,
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

-- A file's bbox as a box in degrees that is not cut at 180°: one that crosses it ends east of 180.
CREATE FUNCTION degrees_box(bbox double precision[]) RETURNS box LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT box(point(bbox[1], bbox[2]), point(bbox[3] + CASE WHEN bbox[3] < bbox[1] THEN 360 ELSE 0 END, bbox[4]))
$$;
CREATE INDEX elevation_dataset_file_meta_box_idx ON elevation_dataset_file_meta
  USING gist (dataset_id, degrees_box(bbox)) WHERE bbox IS NOT NULL;
CREATE INDEX elevation_dataset_file_meta_status_idx ON elevation_dataset_file_meta (dataset_id, status, path)
  WHERE status <> 'ok'; -- few files are not ok

-- The instances that use this database: a row for each instance and each key that it has signed with.
-- The newest live_until of an instance's rows is the end of its lease. A row has been renewed without
-- a gap since alive_since. signer is the fingerprint of the signing key, fingerprints are those of all
-- its keys. Rows outlive instances: seen_at is when the key was last in use.
CREATE TABLE instances (
  id           text        NOT NULL,
  signer       text        NOT NULL,
  fingerprints text[]      NOT NULL,
  seen_at      timestamptz NOT NULL,
  alive_since  timestamptz NOT NULL,
  live_until   timestamptz NOT NULL,
  PRIMARY KEY (id, signer)
);

-- One instance at a time walks the directory of an analysis and writes chunks; walked_to is the last
-- path written. The analysis has ended when the walk has ended and chunks_left is 0. walker_token is
-- a fencing token: it changes with each claim, so that a holder whose lease expired can store
-- nothing. blind lists the instances that do not see the directory. expected is the number of files
-- that the previous analysis found. failures counts walks that the database refused.
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
  failures     integer     NOT NULL DEFAULT 0,
  blind        text[]      NOT NULL DEFAULT '{}',
  expected     bigint      NOT NULL DEFAULT 0,
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

-- A chunk is the interval (from_path, to_path] of a dataset's paths with every file that the walk
-- found in it, as arrays of one length. A null to_path means the end. token is a fencing token;
-- deaths counts instances that died while they held the chunk.
CREATE TABLE analysis_chunks (
  id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  analysis_id bigint      NOT NULL REFERENCES analyses ON DELETE CASCADE,
  from_path   text        COLLATE "C" NOT NULL,
  to_path     text        COLLATE "C",
  paths       text[]      COLLATE "C" NOT NULL DEFAULT '{}',
  sizes       bigint[]    NOT NULL DEFAULT '{}',
  modified    bigint[]    NOT NULL DEFAULT '{}',
  sidecars    bigint[]    NOT NULL DEFAULT '{}',
  reader      text,
  token       uuid,
  deaths      integer     NOT NULL DEFAULT 0,
  failures    integer     NOT NULL DEFAULT 0
);
CREATE INDEX analysis_chunks_analysis_id_idx ON analysis_chunks (analysis_id);
CREATE INDEX analysis_chunks_failures_id_idx ON analysis_chunks (failures, id);
ALTER TABLE analysis_chunks -- not worth compressing: read once
  ALTER COLUMN paths SET STORAGE EXTERNAL,
  ALTER COLUMN sizes SET STORAGE EXTERNAL,
  ALTER COLUMN modified SET STORAGE EXTERNAL,
  ALTER COLUMN sidecars SET STORAGE EXTERNAL;

-- The files that an analysis found added, changed and removed: a row for each chunk that had any.
CREATE TABLE analysis_changes (
  analysis_id bigint NOT NULL REFERENCES analyses ON DELETE CASCADE,
  from_path   text   COLLATE "C" NOT NULL,
  added       text[] COLLATE "C" NOT NULL,
  changed     text[] COLLATE "C" NOT NULL,
  removed     text[] COLLATE "C" NOT NULL,
  PRIMARY KEY (analysis_id, from_path)
);

-- migration 2: version 1.0.0

-- changed_ns is a file's st_ctime in nanoseconds since 1970, which no program can set. Rows of 0.2.0
-- have 0, so their files are read once more.
ALTER TABLE elevation_dataset_file_meta ADD COLUMN changed_ns bigint NOT NULL DEFAULT 0;
ALTER TABLE analysis_chunks ADD COLUMN changed bigint[] NOT NULL DEFAULT '{}';
ALTER TABLE analysis_chunks ALTER COLUMN changed SET STORAGE EXTERNAL;

-- A stored chunk keeps the files that its holder did not find, for a second look: files that the walk
-- found, and files that only have a row (their size is null). missed_by lists the instances that did
-- not find them. The second look begins when no other chunk is left; the last instance that may look
-- removes the rows. missed_at is when an instance missed the files or, at first, when the second look
-- began. missing counts the rows whose files neither the walk nor the first look found, without those
-- that an empty directory or a failed look keeps. It is 0 after the second looks have begun.
ALTER TABLE analyses ADD COLUMN missing bigint NOT NULL DEFAULT 0;
ALTER TABLE analysis_chunks
  ADD COLUMN missed_by text[] NOT NULL DEFAULT '{}',
  ADD COLUMN missed_at timestamptz;

-- Findings of a dataset's report that somebody has accepted. path is a file, or the name of a missing
-- tile; null accepts every finding of the code.
CREATE TABLE accepted_findings (
  id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  dataset_id  bigint      NOT NULL REFERENCES datasets ON DELETE CASCADE,
  code        text        COLLATE "C" NOT NULL,
  path        text        COLLATE "C",
  note        text        NOT NULL,
  accepted_by text        NOT NULL,
  accepted_at timestamptz NOT NULL DEFAULT now(),
  CONSTRAINT accepted_findings_key UNIQUE NULLS NOT DISTINCT (dataset_id, code, path)
);

-- Indexes for lists of files by resolution and by time, and for lists of files with warnings.
CREATE INDEX elevation_dataset_file_meta_resolution_idx ON elevation_dataset_file_meta
  (dataset_id, (-coalesce(resolution_m, 0)), path);
CREATE INDEX elevation_dataset_file_meta_modified_idx ON elevation_dataset_file_meta
  (dataset_id, ((-modified_ns)::double precision), path);
CREATE INDEX elevation_dataset_file_meta_warnings_idx ON elevation_dataset_file_meta (dataset_id, path)
  WHERE warnings <> '{}';

-- Permissions that the team declares for the programs behind its proxy. Roles and API tokens hold
-- them by name, as they hold the built-in ones.
CREATE TABLE declared_permissions (
  name       text        COLLATE "C" PRIMARY KEY,
  meaning    text        NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  CONSTRAINT declared_permissions_name_check CHECK (name ~ '^[a-z0-9][a-z0-9_-]*(\.[a-z0-9_-]+)+$')
);
CREATE TRIGGER declared_permissions_version AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON declared_permissions
  FOR EACH STATEMENT EXECUTE FUNCTION renew_access_version();

-- The sessions of a user that have not ended, which are few: see maxSessions.
CREATE INDEX sessions_live_idx ON sessions (user_id, created_at, id) WHERE ended_at IS NULL;

-- A renewable API token may replace its own secret. The former one is accepted until former_until.
ALTER TABLE api_tokens
  ADD COLUMN renewable    boolean NOT NULL DEFAULT false,
  ADD COLUMN former_hash  bytea,
  ADD COLUMN former_until timestamptz,
  ADD CONSTRAINT api_tokens_former_hash_key UNIQUE (former_hash);
CREATE INDEX api_tokens_expires_at_id_idx ON api_tokens (expires_at, id);

-- Breaks of the audit log. Migration 3 makes rows of the log itself of them.
CREATE TABLE audit_breaks (
  id       text        COLLATE "C" PRIMARY KEY,
  seen_at  timestamptz NOT NULL DEFAULT now(),
  finding  text        NOT NULL,
  seq      bigint      NOT NULL DEFAULT 0,
  mac      bytea       NOT NULL DEFAULT '',
  kid      text        NOT NULL DEFAULT '',
  accepted bytea       NOT NULL DEFAULT ''
);

-- A CRS without an EPSG code whose projection and parameters are known: see crsDefinition.text.
ALTER TABLE elevation_dataset_file_meta ADD COLUMN crs_definition text;

-- Second factors. users.totp: the user has one. roles.requires_totp: the role's holders have no
-- permission from any role until they have one.
ALTER TABLE users ADD COLUMN totp boolean NOT NULL DEFAULT false;
ALTER TABLE roles ADD COLUMN requires_totp boolean NOT NULL DEFAULT false;

-- The secrets of the authenticator apps, encrypted under a key that is derived from the key kid of the
-- key file. expires_at is null once the user has confirmed the secret with a code. A code is accepted
-- only for a later time step than last_step. A recovery code is stored as its SHA-256, until its use.
CREATE TABLE totp_secrets (
  user_id         uuid        PRIMARY KEY REFERENCES users ON DELETE CASCADE,
  kid             text        NOT NULL,
  secret          bytea       NOT NULL,
  last_step       bigint      NOT NULL DEFAULT 0,
  recovery_hashes bytea[]     NOT NULL DEFAULT '{}',
  expires_at      timestamptz
);
-- Whether a GeoTIFF is cloud-optimized; null for other formats, and for rows that have to be read again.
ALTER TABLE elevation_dataset_file_meta ADD COLUMN cog boolean;

-- migration 3: version 1.0.0, second step

-- API tokens no longer replace their own secrets.
ALTER TABLE api_tokens
  DROP COLUMN renewable,
  DROP COLUMN former_hash,
  DROP COLUMN former_until;

-- The name says what it means, as users see it: the role's holders have no permission from any role
-- until they have a second factor.
ALTER TABLE roles RENAME COLUMN requires_totp TO requires_second_factor;

-- Users are listed by name alone.
DROP INDEX users_created_at_id_idx;
DROP INDEX users_last_login_at_id_idx;

-- Guesses at a password or code, registrations and changes of one's own account, counted for an
-- account, a network or both, by the rules in auth_throttle.go. account is empty, "registrations", "user:"
-- with a user's id, or "name:" with the HMAC of a login name as it was typed. network is an IPv4
-- address, the first address of an IPv6 /64, or empty. Until next_at attempts are refused. At
-- expires_at a row is forgotten: the next attempt counts as the first.
DROP TABLE throttles;
CREATE TABLE throttles (
  account    text        COLLATE "C" NOT NULL,
  network    text        COLLATE "C" NOT NULL,
  attempts   bigint      NOT NULL,
  next_at    timestamptz,
  expires_at timestamptz NOT NULL,
  PRIMARY KEY (account, network)
);
CREATE INDEX throttles_expires_at_idx ON throttles (expires_at);

-- The networks that a user has signed in from during the last 90 days. A lockout does not apply there.
CREATE TABLE known_networks (
  user_id    uuid        NOT NULL REFERENCES users ON DELETE CASCADE,
  network    text        COLLATE "C" NOT NULL,
  expires_at timestamptz NOT NULL,
  PRIMARY KEY (user_id, network)
);

-- Breaks of the audit log are rows of it. These rows have no MAC, so "cairn audit verify" reports once
-- more what is still missing or wrong.
INSERT INTO audit_log (actor, credential, address, request_id, action, target, after)
  SELECT 'cairn', '', '', '', 'audit.break_found', 'audit', jsonb_build_object(
    'findings', jsonb_build_array(finding),
    'seen_at', seen_at,
    'was_accepted', accepted <> '',
    'head', seq || ':' || encode(mac, 'hex'))
  FROM audit_breaks
  ORDER BY seen_at, id;
DROP TABLE audit_breaks;

-- Findings that were accepted as seams are those of misaligned tiles. What was accepted as a duplicate
-- may be an overlap now, because duplicates have the same size in bytes.
UPDATE accepted_findings SET code = 'misaligned' WHERE code = 'seam';
INSERT INTO accepted_findings (dataset_id, code, path, note, accepted_by, accepted_at)
  SELECT dataset_id, 'overlap', path, note, accepted_by, accepted_at
  FROM accepted_findings
  WHERE code = 'duplicate'
  ORDER BY id
  ON CONFLICT DO NOTHING;

-- migration 4: version 1.0.0, third step

-- One instance owns an analysis. It compares the directory with the rows, both in the order of
-- paths, from the beginning. What a former owner has stored is unchanged then. The steps are merge,
-- look (for the files of rows that the merge did not find), remove, and check (the rows that are
-- left). Of an analysis with checks_only, check is the only step. owner_token is a fencing token: it
-- changes with each claim, so that an owner whose lease expired can store nothing. deaths counts
-- owners that died in this step. After the first death in the merge, files are read one by one:
-- suspect is the file in hand, with its size and times, and deaths counts only owners that died over
-- it. missed_by lists the instances that did not find the files of the candidates, and missed_at is
-- when the last of them looked. blind_at is when the last instance found that it does not see the
-- directory. expected is the number of files that the previous analysis found.
DELETE FROM analysis_changes WHERE analysis_id IN (SELECT id FROM analyses WHERE finished_at IS NULL);
DROP TABLE analysis_chunks;
ALTER TABLE analyses
  DROP COLUMN walked_to,
  DROP COLUMN chunks_left,
  DROP COLUMN unchanged,
  DROP COLUMN missing,
  DROP CONSTRAINT analyses_state_check,
  ADD COLUMN step        text        NOT NULL DEFAULT 'merge',
  ADD COLUMN deaths      integer     NOT NULL DEFAULT 0,
  ADD COLUMN suspect     text,
  ADD COLUMN missed_by   text[]      NOT NULL DEFAULT '{}',
  ADD COLUMN missed_at   timestamptz,
  ADD COLUMN blind_at    timestamptz,
  ADD COLUMN checks_only boolean     NOT NULL DEFAULT false;
ALTER TABLE analyses RENAME COLUMN walker TO owner;
ALTER TABLE analyses RENAME COLUMN walker_token TO owner_token;
UPDATE analyses
  SET state = 'queued', owner = NULL, owner_token = NULL, total = 0, added = 0, changed = 0, removed = 0,
    failed = 0
  WHERE finished_at IS NULL;
ALTER TABLE analyses ADD CONSTRAINT analyses_state_check CHECK (state IN
  ('queued', 'reading', 'checking', 'succeeded', 'failed', 'canceled'));

-- The files that an analysis found added, changed and removed.
ALTER TABLE analysis_changes RENAME TO former_changes;
ALTER TABLE former_changes RENAME CONSTRAINT analysis_changes_pkey TO former_changes_pkey;
CREATE TABLE analysis_changes (
  analysis_id bigint NOT NULL REFERENCES analyses ON DELETE CASCADE,
  path        text   COLLATE "C" NOT NULL,
  change      text   NOT NULL,
  CONSTRAINT analysis_changes_change_check CHECK (change IN ('added', 'changed', 'removed')),
  PRIMARY KEY (analysis_id, path)
);
INSERT INTO analysis_changes (analysis_id, path, change)
  SELECT analysis_id, unnest(added), 'added' FROM former_changes
  UNION ALL
  SELECT analysis_id, unnest(changed), 'changed' FROM former_changes
  UNION ALL
  SELECT analysis_id, unnest(removed), 'removed' FROM former_changes
  ON CONFLICT DO NOTHING;
DROP TABLE former_changes;

-- The rows that an analysis did not find a file for. They go at its end, if their files are gone then.
-- found_by is the instance that found the file after another had missed it: the file may have come
-- back, so the others look again.
CREATE TABLE analysis_candidates (
  analysis_id bigint NOT NULL REFERENCES analyses ON DELETE CASCADE,
  path        text   COLLATE "C" NOT NULL,
  found_by    text,
  PRIMARY KEY (analysis_id, path)
);

-- The analysis that added the row, and the one that last read the file; 0 if that was before this
-- migration.
ALTER TABLE elevation_dataset_file_meta
  ADD COLUMN added_in bigint NOT NULL DEFAULT 0,
  ADD COLUMN read_in  bigint NOT NULL DEFAULT 0;

-- What else a file's header says: the unit of its heights, which are sample * scale + "offset" (null: not
-- stated); the compression of a TIFF, and the bytes of its first image.
ALTER TABLE elevation_dataset_file_meta
  ADD COLUMN unit        text,
  ADD COLUMN scale       double precision,
  ADD COLUMN "offset"    double precision,
  ADD COLUMN compression text,
  ADD COLUMN data_bytes  bigint;

-- What the files of a dataset should be: an expectation in JSON.
CREATE TABLE dataset_expectations (
  dataset_id  bigint      PRIMARY KEY REFERENCES datasets ON DELETE CASCADE,
  expectation json        NOT NULL,
  updated_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- The results of the checks of a dataset, in this table and the next three. The last transaction of
-- an analysis replaces them. summary is a resultSummary in JSON, and a picture is a coverage.
-- is_first is true until a second analysis has checked the dataset. expected_at is updated_at of the
-- expectation with which the files were compared. checks_version is that of the checks: see
-- checksVersion.
CREATE TABLE dataset_results (
  dataset_id        bigint      PRIMARY KEY REFERENCES datasets ON DELETE CASCADE,
  analysis_id       bigint      NOT NULL,
  is_first          boolean     NOT NULL,
  checks_version    integer     NOT NULL,
  expected_at       timestamptz,
  analyzed_at       timestamptz NOT NULL,
  checked_at        timestamptz NOT NULL DEFAULT now(),
  summary           jsonb       NOT NULL,
  picture           jsonb       NOT NULL,
  picture_by_status jsonb       NOT NULL
);

-- The findings. Of each code the first 10,000 are stored. path is a file, a folder or the name of a
-- missing tile. first_seen is the first of the successive analyses that found it.
CREATE TABLE dataset_findings (
  dataset_id  bigint  NOT NULL REFERENCES datasets ON DELETE CASCADE,
  code        text    COLLATE "C" NOT NULL,
  path        text    COLLATE "C" NOT NULL,
  folder      text    COLLATE "C" NOT NULL,
  detail      text    NOT NULL,
  tile        jsonb,
  first_seen  bigint  NOT NULL,
  is_accepted boolean NOT NULL DEFAULT false,
  PRIMARY KEY (dataset_id, code, path)
);

-- Runs of missing tiles in a row of a grid, from one column to another, both included. grid is the
-- index of the grid in the summary.
CREATE TABLE dataset_gaps (
  dataset_id   bigint  NOT NULL REFERENCES datasets ON DELETE CASCADE,
  grid         integer NOT NULL,
  row          bigint  NOT NULL,
  first_column bigint  NOT NULL,
  last_column  bigint  NOT NULL,
  PRIMARY KEY (dataset_id, grid, row, first_column)
);

-- The numbers of findings in each folder. They are exact: they count also those that are not stored.
CREATE TABLE dataset_finding_totals (
  dataset_id bigint NOT NULL REFERENCES datasets ON DELETE CASCADE,
  code       text   COLLATE "C" NOT NULL,
  folder     text   COLLATE "C" NOT NULL,
  total      bigint NOT NULL,
  accepted   bigint NOT NULL DEFAULT 0,
  PRIMARY KEY (dataset_id, code, folder)
);

-- A dataset that a former version has analysed has no results yet: its rows are checked.
INSERT INTO analyses (dataset_id, force, requested_by, step, checks_only, total)
  SELECT id, false, 'cairn', 'check', true,
    (SELECT count(*) FROM elevation_dataset_file_meta WHERE dataset_id = d.id)
  FROM datasets d
  WHERE EXISTS (SELECT FROM analyses WHERE dataset_id = d.id AND state = 'succeeded')
    AND NOT EXISTS (SELECT FROM analyses WHERE dataset_id = d.id AND finished_at IS NULL);
