package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/jackc/pgx/v5/pgxpool"
)

// deadInstances is SQL for the ids of the instances whose leases have expired, so that instance $1
// may take over their tasks. After an outage of the database every lease has expired. So an
// instance whose own lease had a gap waits for one lease before it declares others dead. In that
// time the living renew theirs.
const deadInstances = `
	SELECT dead.id
	FROM
		instances own,
		(SELECT id, max(live_until) AS live_until FROM instances GROUP BY id) dead
	WHERE own.id = $1
		AND own.live_until >= now()
		AND dead.live_until < now()
		AND (
			dead.live_until > own.alive_since
			OR now() - own.alive_since > own.live_until - own.seen_at
		)`

// othersSee is SQL for whether a living instance other than $1 may see the directory of analysis a.
const othersSee = `
	EXISTS (
		SELECT
		FROM instances i
		WHERE i.id <> $1
			AND i.live_until > now()
			AND i.id <> ALL (a.blind)
	)`

// othersMayLook is SQL for whether a living instance other than $1 has still to look for the
// candidates of analysis a. After $1 has looked, it waits five minutes for that instance, whose
// file system may hang.
const othersMayLook = `
	EXISTS (
		SELECT
		FROM instances i
		WHERE i.id <> $1
			AND i.live_until > now()
			AND i.id <> ALL (a.blind)
			AND i.id <> ALL (a.missed_by)
			AND ($1 <> ALL (a.missed_by) OR a.missed_at > now() - interval '5 minutes')
	)`

// mayOwn is SQL for whether instance $1 may own analysis a. An instance that does not see the
// directory may do so only if no other is left, or if none of them has begun within five minutes;
// then the analysis fails. One that has looked for the candidates may do so if no other has still
// to look.
const mayOwn = `
	(
		$1 <> ALL (a.blind)
		OR NOT ` + othersSee + `
		OR a.owner IS NULL AND a.blind_at < now() - interval '5 minutes'
	)
	AND ($1 <> ALL (a.missed_by) OR NOT ` + othersMayLook + `)`

// releaseOf is SQL that releases the analyses of owners that have died. A death counts for each of
// them, except that a death during checks counts for no other analysis. It ends with the condition
// for owners.
const releaseOf = `
	UPDATE analyses a
	SET
		owner = NULL,
		owner_token = NULL,
		deaths = deaths + (step = 'check' OR NOT EXISTS (
			SELECT FROM analyses other
			WHERE other.owner = a.owner
				AND other.step = 'check'
				AND other.finished_at IS NULL
		))::int
	WHERE finished_at IS NULL AND owner = `

// releaseDead releases the analyses of dead instances. It runs once a second, so an error does no
// harm.
func releaseDead(ctx context.Context, db *pgxpool.Pool, instance string) {
	const query = releaseOf + `ANY (` + deadInstances + `)`
	execute(ctx, db, "release analyses", query, instance)
}

// succeedInstance ends the lease of the service that used the state directory before, and releases
// its work, so that a service that starts again after a kill continues at once. The lock file holds
// the id of that service. It has ended, because this one has the lock. But if the directory is a
// copy, that service may still run: then its fencing tokens become void, and its work is done
// again.
func succeedInstance(ctx context.Context, db *pgxpool.Pool, stateDir, id string) error {
	const release = `
		WITH ended AS (
			UPDATE instances
			SET live_until = now() - interval '1 second'
			WHERE id = $1 AND live_until > now()
		)` + releaseOf + `$1`

	lock, err := os.OpenFile(filepath.Join(stateDir, "lock"), os.O_RDWR|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("read the last instance's id: %w", err)
	}
	defer lock.Close()

	before := make([]byte, len(id)) // all ids have the same length
	n, err := lock.ReadAt(before, 0)
	if err != nil && err != io.EOF {
		return fmt.Errorf("read the last instance's id: %w", err)
	}

	if _, err := execute(ctx, db, "release work", release, string(before[:n])); err != nil {
		return err
	}

	if _, err := lock.WriteAt([]byte(id), 0); err != nil {
		return fmt.Errorf("write the instance's id: %w", err)
	}

	return nil
}

// instanceStopped ends the lease of this instance. The key of its newest row was in use until now.
func instanceStopped(ctx context.Context, db *pgxpool.Pool, id string) error {
	const query = `
		UPDATE instances
		SET live_until = now() - interval '1 second',
			seen_at = CASE WHEN seen_at = (SELECT max(seen_at) FROM instances WHERE id = $1) THEN now() ELSE seen_at END
		WHERE id = $1`
	_, err := execute(ctx, db, "note stop", query, id)
	return err
}
