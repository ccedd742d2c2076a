package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// auditRows adds rows to the audit log.
func (ts *testServer) auditRows(n int) {
	ts.t.Helper()
	for i := range n {
		if err := audit(context.Background(), ts.db, operatorActor(), "test", fmt.Sprint("target:", i), nil, nil); err != nil {
			ts.t.Fatal(err)
		}
	}
}

// sealedUpTo waits until no row waits for its seal and the newest seal has this number.
func (ts *testServer) sealedUpTo(n int) {
	ts.t.Helper()
	waitFor(ts.t, fmt.Sprint("seal ", n), func() bool {
		return ts.queryInt(`SELECT count(*) FROM audit_unsealed`) == 0 && ts.queryInt(`SELECT coalesce(max(seq), 0) FROM audit_seals`) == n
	})
}

// sees waits until the service's log says something.
func (ts *testServer) sees(what string) {
	ts.t.Helper()
	waitFor(ts.t, what, func() bool { return strings.Contains(ts.log.String(), what) })
}

// cutTail truncates the seals after a number by hand, and makes their rows wait for seals again.
func (ts *testServer) cutTail(seq int) {
	ts.exec(`ALTER TABLE audit_seals DISABLE TRIGGER USER`)
	ts.exec(`WITH gone AS (DELETE FROM audit_seals WHERE seq > $1 RETURNING audit_id) INSERT INTO audit_unsealed SELECT audit_id FROM gone`, seq)
}

// changeSealed changes the row with the given seal, past the trigger that forbids it.
func (ts *testServer) changeSealed(seq int) {
	ts.exec(`ALTER TABLE audit_log DISABLE TRIGGER USER`)
	ts.exec(`UPDATE audit_log SET actor = 'nobody' WHERE id = (SELECT audit_id FROM audit_seals WHERE seq = $1)`, seq)
	ts.exec(`ALTER TABLE audit_log ENABLE TRIGGER USER`)
}

// broken returns the metric that tells of a break.
func broken(c client) string {
	for line := range strings.Lines(string(c.must(200, "GET", "/metrics", nil).body)) {
		if value, ok := strings.CutPrefix(line, "cairn_audit_broken "); ok {
			return strings.TrimSpace(value)
		}
	}
	return "no metric"
}

// TestBreakStopsAllInstances: after one instance has seen a break, no instance seals until the operator accepts it,
// whatever happens to its row in the database.
func TestBreakStopsAllInstances(t *testing.T) {
	t.Parallel()
	one := startServer(t, nil)
	metrics := one.signIn("metrics", metricsRead)
	one.auditRows(8)
	total := one.queryInt(`SELECT count(*) FROM audit_log`)
	one.sealedUpTo(total)
	old, err := one.command("audit", "verify")
	if err != nil {
		t.Fatal(err)
	}
	_, old, _ = strings.Cut(old, "head ")
	old, _, _ = strings.Cut(old, ",")
	env := append(one.env, "CAIRN_KEYS_FILE="+one.cfg.keysPath())
	two := startServer(t, nil, append(env, "CAIRN_STATE_DIR="+t.TempDir())...) // it has sealed nothing yet
	if value := broken(metrics); value != "0" {
		t.Errorf("the metric is %s", value)
	}

	one.changeSealed(5)
	one.cutTail(3)
	one.sees("audit log broken")
	two.sees("audit log broken")
	for _, log := range []string{one.log.String(), two.log.String()} {
		if !strings.Contains(log, `"level":"ERROR"`) || !strings.Contains(log, "the audit log was tampered with: the seal "+old+" is gone") {
			t.Error(log)
		}
	}
	metrics.url = two.url
	if value := broken(metrics); value != "1" {
		t.Errorf("the metric is %s", value)
	}
	one.stop() // the only instance that made seals itself
	three := startServer(t, nil, append(env, "CAIRN_STATE_DIR="+t.TempDir())...)
	three.sees("audit log broken")
	two.exec(`DELETE FROM audit_breaks`)
	waitFor(t, "the note to come back", func() bool { return two.queryInt(`SELECT count(*) FROM audit_breaks`) == 1 })
	two.exec(`UPDATE audit_breaks SET seq = 3, mac = (SELECT mac FROM audit_seals WHERE seq = 3), accepted = mac, kid = $1`, two.keys.Load().keys[0].id)
	if said, err := two.command("audit", "verify"); err == nil || !strings.Contains(err.Error(), "the seal "+old+" is gone") {
		t.Error(said, err)
	}
	two.auditRows(1)
	four := startServer(t, nil, append(env, "CAIRN_STATE_DIR="+t.TempDir())...)
	four.sees("audit log broken")
	if n := two.queryInt(`SELECT max(seq) FROM audit_seals`); n != 3 {
		t.Errorf("sealed up to %d", n)
	}

	if said, err := two.command("audit", "accept"); err != nil || !strings.Contains(said, "the seal "+old+" is gone") {
		t.Fatal(said, err)
	}
	two.sealedUpTo(total + 2) // the rows that were there, one more, and the acceptance
	for _, ts := range []*testServer{two, three, four} {
		ts.sees("breaks of the audit log accepted")
	}
	if value := broken(metrics); value != "0" {
		t.Errorf("the metric is %s", value)
	}
	if said, err := two.command("audit", "verify"); err != nil {
		t.Error(said, err)
	}
	if _, err := two.command("audit", "verify", "--head", old); err == nil {
		t.Error("the old head is still accepted")
	}
	two.changeSealed(7) // or another instance could seal the rows again with the same seals
	two.cutTail(5)      // a second break is a break again
	waitFor(t, "a second break", func() bool { return broken(metrics) == "1" })
}

// TestForgedSeals: no instance seals over a forged checkpoint or a forged last seal.
func TestForgedSeals(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ harm, found string }{
		"a checkpoint, for an instance that made seals": {`DELETE FROM audit_seals;
			INSERT INTO audit_seals SELECT 100, 100, $1, decode(repeat('00', 32), 'hex'), decode(repeat('00', 32), 'hex')`, "is gone"},
		"the last seal": {`UPDATE audit_seals SET mac = decode(repeat('00', 32), 'hex') WHERE seq = (SELECT max(seq) FROM audit_seals) AND $1 <> ''`,
			"is gone"},
		"one more seal": {`INSERT INTO audit_seals SELECT seq + 1, 1000, $1, mac FROM audit_seals ORDER BY seq DESC LIMIT 1`, "row 1000 (seal 10) is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ts := startServer(t, nil)
			ts.auditRows(8)
			ts.sees(`"head":"9:`)
			ts.exec(`ALTER TABLE audit_seals DISABLE TRIGGER USER`)
			for _, statement := range strings.SplitAfter(test.harm, ";") {
				args := []any{}
				if strings.Contains(statement, "$1") {
					args = append(args, ts.keys.Load().keys[0].id)
				}
				ts.exec(statement, args...)
			}
			ts.auditRows(1)
			ts.sees("audit log broken")
			if !strings.Contains(ts.log.String(), test.found) {
				t.Error(ts.log.String())
			}
		})
	}
	t.Run("the last seal, for an instance that made none", func(t *testing.T) {
		t.Parallel()
		one := startServer(t, nil)
		one.auditRows(8)
		one.sealedUpTo(9)
		one.stop()
		change(t, one.env, `ALTER TABLE audit_seals DISABLE TRIGGER USER`)
		change(t, one.env, `UPDATE audit_seals SET mac = decode(repeat('00', 32), 'hex') WHERE seq = 9`)
		two := startServer(t, nil, one.env...)
		two.sees("row 9 or its seal 9 was changed")
	})
}

// TestSealerSeesLateCut: rows that are queued again by hand after the sealer has looked for a break, and before it lists
// the rows that wait, are not sealed.
func TestSealerSeesLateCut(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.auditRows(8)
	ts.sealedUpTo(9)
	ts.exec(`ALTER TABLE audit_seals DISABLE TRIGGER USER`)
	err := pgx.BeginFunc(t.Context(), ts.db, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `LOCK TABLE audit_unsealed`)
		waitFor(t, "the sealer to list the rows", func() bool {
			return err != nil || ts.queryInt(`SELECT count(*) FROM pg_locks WHERE relation = 'audit_unsealed'::regclass AND NOT granted`) == 1
		})
		const cut = `WITH gone AS (DELETE FROM audit_seals WHERE seq > 3 RETURNING audit_id) INSERT INTO audit_unsealed SELECT audit_id FROM gone`
		_, failed := tx.Exec(t.Context(), cut)
		return errors.Join(err, failed)
	})
	if err != nil {
		t.Fatal(err)
	}
	ts.sees("audit log broken")
	if n := ts.queryInt(`SELECT max(seq) FROM audit_seals`); n != 3 {
		t.Errorf("sealed up to %d", n)
	}
}

// TestAcceptOnce: one acceptance is enough for an instance that has not seen the break and remembers a seal that is gone.
func TestAcceptOnce(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.auditRows(8)
	ts.sealedUpTo(9)
	other := sealer{open: map[string]string{}, last: seal{seq: 8}}
	if err := ts.db.QueryRow(t.Context(), `SELECT mac FROM audit_seals WHERE seq = 8`).Scan(&other.last.mac); err != nil {
		t.Fatal(err)
	}
	ts.changeSealed(5) // or the rows would get the same seals again
	ts.cutTail(3)
	ts.sees("audit log broken")
	if said, err := ts.command("audit", "accept"); err != nil {
		t.Fatal(said, err)
	}
	ts.sealedUpTo(10)
	for range 2 {
		waitFor(t, "the other instance's turn", func() bool {
			ts.auditRows(1)
			n, err := other.sealRows(t.Context(), ts.db, ts.keys.Load())
			return n > 0 || other.broken.Load() || err != nil
		})
	}
	if other.broken.Load() {
		t.Errorf("broken: %v", other.open)
	}
	ts.cutTail(3) // the acceptance holds once
	waitFor(t, "a second break", func() bool {
		_, err := other.sealRows(t.Context(), ts.db, ts.keys.Load())
		return other.broken.Load() || err != nil
	})
}

// TestSealOfUnknownKey: an instance that lacks the key of the newest seal stops sealing until it has the key, and stops
// no other instance. A key that is gone for good is accepted as a break.
func TestSealOfUnknownKey(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.auditRows(8)
	ts.sealedUpTo(9)
	added := newKeyLine()
	id, _, _ := strings.Cut(added, " ")
	old, err := os.ReadFile(ts.cfg.keysPath())
	if err != nil {
		t.Fatal(err)
	}
	rotated, err := parseKeys(append([]byte(added), old...))
	if err != nil {
		t.Fatal(err)
	}
	rotatedSealer := sealer{open: map[string]string{}}
	waitFor(t, "a seal by the new key", func() bool {
		ts.auditRows(1)
		n, err := rotatedSealer.sealRows(t.Context(), ts.db, rotated)
		return err != nil || n > 0
	})
	ts.auditRows(1)
	ts.sees("the key file has no key " + id)
	beat := func() (unix int) {
		return ts.queryInt(`SELECT extract(epoch FROM max(live_until))::int FROM instances`)
	}
	before := beat()
	waitFor(t, "a heartbeat, which is rarer than an attempt to seal", func() bool { return beat() != before })
	if n := strings.Count(ts.log.String(), "audit log not sealed"); n != 1 {
		t.Errorf("%d warnings of one state", n)
	}
	if n := ts.queryInt(`SELECT count(*) FROM audit_breaks`); n != 0 || strings.Contains(ts.log.String(), "audit log broken") {
		t.Errorf("%d breaks: %s", n, ts.log.String())
	}
	if n := ts.queryInt(`SELECT count(*) FROM audit_unsealed`); n == 0 {
		t.Error("a row was sealed after a seal that could not be checked")
	}
	if err := errors.Join(os.WriteFile(ts.cfg.keysPath(), append(old, added...), 0o600), ts.operations.reloadKeys(t.Context())); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "all seals", func() bool { return ts.queryInt(`SELECT count(*) FROM audit_unsealed`) == 0 })

	ts.exec(`ALTER TABLE audit_seals DISABLE TRIGGER USER`)
	ts.exec(`UPDATE audit_seals SET kid = 'x' WHERE seq = (SELECT max(seq) FROM audit_seals)`)
	ts.sees("the key file has no key x")
	if said, err := ts.command("audit", "accept"); err != nil || !strings.Contains(said, "the key file has no key x") {
		t.Fatal(said, err)
	}
	waitFor(t, "the seals after the acceptance", func() bool { return ts.queryInt(`SELECT count(*) FROM audit_unsealed`) == 0 })
}

// TestCheckpointOfFormerKey: a checkpoint that another key of the key file made is a checkpoint.
func TestCheckpointOfFormerKey(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(file, []byte(newKeyLine()+newKeyLine()), 0o600); err != nil {
		t.Fatal(err)
	}
	ts := startServer(t, nil, "CAIRN_KEYS_FILE="+file)
	ts.auditRows(8)
	ts.sealedUpTo(9)
	if n, err := pruneAudit(t.Context(), ts.db, ts.keys.Load().keys[1], ts.now()); n != 9 || err != nil {
		t.Fatal(n, err)
	}
	ts.auditRows(2)
	ts.sealedUpTo(12)
	if said, err := ts.command("audit", "verify"); err != nil || strings.Contains(ts.log.String(), "audit log broken") {
		t.Error(said, err, ts.log.String())
	}
}

// change runs a statement on the database of a service that does not run.
func change(t *testing.T, env []string, statement string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), lookup(env, "CAIRN_DATABASE_URL"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}
