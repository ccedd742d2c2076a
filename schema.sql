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
  end_reason      text
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

-- A directory of elevation files. path is relative to the first dataset root, or absolute below
-- another one.
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

-- The analysis task. It lives here, not in a process: whoever holds walker_token until walker_lease
-- lists the directory and writes chunks, walked_to being the last path written. The analysis has
-- ended when the walk has and chunks_left is 0.
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
  walker_token uuid,
  walker_lease timestamptz NOT NULL DEFAULT '-infinity',
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
-- to_path means to the end. Rows of the interval that are not in files are deleted when it is
-- stored, but for those below kept_dirs, which could not be listed.
CREATE TABLE analysis_chunks (
  id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  analysis_id bigint      NOT NULL REFERENCES analyses ON DELETE CASCADE,
  from_path   text        COLLATE "C" NOT NULL,
  to_path     text        COLLATE "C",
  files       json        NOT NULL,
  kept_dirs   text[]      NOT NULL,
  token       uuid,
  lease_until timestamptz NOT NULL DEFAULT '-infinity',
  attempts    integer     NOT NULL DEFAULT 0
);
CREATE INDEX analysis_chunks_analysis_id_idx ON analysis_chunks (analysis_id);
