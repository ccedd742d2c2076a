-- The tables of accounts, as numbered migrations; schema_catalogue.sql has the other tables. A line
-- "-- migration N: title" begins a migration. First comes its part in this file, then its part in
-- schema_catalogue.sql. migrate applies those that a database lacks. A migration that has been released is never edited.

-- migration 1: version 0.2.0

CREATE EXTENSION IF NOT EXISTS pg_trgm;    -- for parts of names
CREATE EXTENSION IF NOT EXISTS btree_gist; -- for files by dataset and place

-- A person or a service account. Ids are random, so that none is used twice, even after a restore.
-- credential_version rises when the password or the status changes, when a second factor is enabled
-- or removed, and when somebody ends all sessions of the user. A login that began before such a change
-- cannot open a session after it.
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
-- with a MAC over both. rotated_at is the time of the last refresh, or of the login if there was none.
-- In a browser's session it is the time of the last use, up to five minutes too early.
-- burst_generation and burst_began_at serve rotateSession, which explains them.
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

-- The audit log. Rows are added and never changed. Retention deletes old rows.
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

-- The seals of the audit log's rows, numbered 1, 2, 3 and so on. The number of a seal that is lost is
-- not used again, so the loss shows as a gap. mac is an HMAC of the seal before and of the row, under
-- a key derived from the key kid of the key file. Retention deletes old rows, and their seals but for
-- the newest one. This seal gets a checkpoint: a MAC which proves that retention deleted its row and
-- all rows before. From then on kid names the key of the checkpoint, and mac is not checked any more,
-- because its row is gone. At most one seal has a checkpoint.
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
    RETURN NULL; -- allows the change: the result of a statement trigger is ignored
  END IF;
  RAISE EXCEPTION 'rows of % can only be added', TG_TABLE_NAME;
END $$;
CREATE TRIGGER audit_log_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_log
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER audit_seals_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_seals
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- The instances that use this database: a row for each instance and each key that it has signed with.
-- An instance renews its row while it runs. After the newest live_until of its rows it counts as
-- stopped. alive_since is when the present run of renewals began. signer is the fingerprint of the
-- signing key. fingerprints are those of all keys of the instance. A row stays after its instance has
-- stopped. seen_at is when the key was last in use.
CREATE TABLE instances (
  id           text        NOT NULL,
  signer       text        NOT NULL,
  fingerprints text[]      NOT NULL,
  seen_at      timestamptz NOT NULL,
  alive_since  timestamptz NOT NULL,
  live_until   timestamptz NOT NULL,
  PRIMARY KEY (id, signer)
);

-- migration 2: version 1.0.0

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

-- Dropped by migration 3. A renewable API token may replace its own secret. The former secret is
-- accepted until former_until.
ALTER TABLE api_tokens
  ADD COLUMN renewable    boolean NOT NULL DEFAULT false,
  ADD COLUMN former_hash  bytea,
  ADD COLUMN former_until timestamptz,
  ADD CONSTRAINT api_tokens_former_hash_key UNIQUE (former_hash);
CREATE INDEX api_tokens_expires_at_id_idx ON api_tokens (expires_at, id);

-- Breaks of the audit log. Migration 3 turns them into rows of the audit log.
CREATE TABLE audit_breaks (
  id       text        COLLATE "C" PRIMARY KEY,
  seen_at  timestamptz NOT NULL DEFAULT now(),
  finding  text        NOT NULL,
  seq      bigint      NOT NULL DEFAULT 0,
  mac      bytea       NOT NULL DEFAULT '',
  kid      text        NOT NULL DEFAULT '',
  accepted bytea       NOT NULL DEFAULT ''
);

-- Second factors. users.totp: the user has one. roles.requires_totp: the role's holders have no
-- permission from any role until they have one.
ALTER TABLE users ADD COLUMN totp boolean NOT NULL DEFAULT false;
ALTER TABLE roles ADD COLUMN requires_totp boolean NOT NULL DEFAULT false;

-- The secrets of the authenticator apps, encrypted under a key derived from the key kid of the key
-- file. expires_at is null once the user has confirmed the secret with a code. A code is accepted only
-- for a later time step than last_step. A recovery code is stored as its SHA-256, until its use.
CREATE TABLE totp_secrets (
  user_id         uuid        PRIMARY KEY REFERENCES users ON DELETE CASCADE,
  kid             text        NOT NULL,
  secret          bytea       NOT NULL,
  last_step       bigint      NOT NULL DEFAULT 0,
  recovery_hashes bytea[]     NOT NULL DEFAULT '{}',
  expires_at      timestamptz
);

-- migration 3: version 1.0.0, second step

-- API tokens no longer replace their own secrets.
ALTER TABLE api_tokens
  DROP COLUMN renewable,
  DROP COLUMN former_hash,
  DROP COLUMN former_until;

-- The column gets the name that users see. The role's holders have no permission from any role until
-- they have a second factor.
ALTER TABLE roles RENAME COLUMN requires_totp TO requires_second_factor;

-- Users are listed by name alone.
DROP INDEX users_created_at_id_idx;
DROP INDEX users_last_login_at_id_idx;

-- Guesses at a password or code, registrations and changes of one's own account, counted for a
-- subject, a network or both, by the rules in auth_throttle.go. account is the subject: empty,
-- "registrations", "user:" with a user's id, or "name:" with the HMAC of a login name as it was typed.
-- network is an IPv4 address, the first address of an IPv6 /64, or empty. Until next_at, attempts are
-- refused. After expires_at the row no longer counts: the next attempt counts as the first.
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

-- Breaks of the audit log become rows of it. If Cairn itself adds such a row, the column "after" holds
-- a MAC, by which "cairn audit verify" knows that the break was reported already. The rows that this
-- statement adds hold none. So verify reports once more what is still missing or wrong.
INSERT INTO audit_log (actor, credential, address, request_id, action, target, after)
  SELECT 'cairn', '', '', '', 'audit.break_found', 'audit', jsonb_build_object(
    'findings', jsonb_build_array(finding),
    'seen_at', seen_at,
    'was_accepted', accepted <> '',
    'head', seq || ':' || encode(mac, 'hex'))
  FROM audit_breaks
  ORDER BY seen_at, id;
DROP TABLE audit_breaks;

-- migration 4: version 1.0.0, third step

-- This migration changes no table of accounts.

-- migration 5: version 1.0.0, fourth step

-- This migration changes no table of accounts.

-- migration 6: version 1.0.0, fifth step

-- This migration changes no table of accounts.

-- migration 7: version 1.0.0, sixth step

-- This migration changes no table of accounts.

-- migration 8: version 1.0.0, seventh step

-- This migration changes no table of accounts.

-- migration 9: version 1.0.0, eighth step

-- This migration changes no table of accounts.

-- migration 10: version 1.0.0, ninth step

-- This migration changes no table of accounts.

-- migration 11: version 1.0.0, tenth step

-- This migration changes no table of accounts.

-- migration 12: version 1.0.0, eleventh step

-- Passkeys. credential_id is the authenticator's name of the key. public_key is a SubjectPublicKeyInfo
-- in DER. sign_count is the counter of the authenticator, or 0 if it does not count. An answer is accepted
-- only to a later challenge than last_challenge, the time of the last one in Unix nanoseconds.
CREATE TABLE passkeys (
  id             uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
  user_id        uuid        NOT NULL REFERENCES users ON DELETE CASCADE,
  name           text        COLLATE "C" NOT NULL,
  credential_id  bytea       NOT NULL,
  public_key     bytea       NOT NULL,
  sign_count     bigint      NOT NULL,
  last_challenge bigint      NOT NULL,
  created_at     timestamptz NOT NULL DEFAULT now(),
  last_used_at   timestamptz,
  CONSTRAINT passkeys_credential_id_key UNIQUE (credential_id)
);
CREATE INDEX passkeys_user_id_idx ON passkeys (user_id);

-- users.passkey: the user has one. It counts as a second factor, as an authenticator app does. A login
-- under way fails when a passkey is added or ends.
ALTER TABLE users ADD COLUMN passkey boolean NOT NULL DEFAULT false;
CREATE FUNCTION note_passkeys() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE users
    SET passkey = EXISTS (SELECT FROM passkeys p WHERE p.user_id = users.id),
      credential_version = credential_version + 1,
      updated_at = now()
    WHERE id = coalesce(NEW.user_id, OLD.user_id); -- at an INSERT, OLD is null; at a DELETE, NEW is null
  RETURN NULL;
END $$;
CREATE TRIGGER passkeys_note AFTER INSERT OR DELETE ON passkeys
  FOR EACH ROW EXECUTE FUNCTION note_passkeys();
