// Package suite is the conformance suite of the Gateway API as one program. Its report is JSON.
package suite

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/gateway-api/conformance"
	"sigs.k8s.io/gateway-api/conformance/tests"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
)

func TestConformance(t *testing.T) {
	options := conformance.DefaultOptions(t)
	run, err := suite.NewConformanceTestSuite(options)
	require.NoError(t, err)
	// Registered first, so called when the run is over.
	t.Cleanup(func() {
		report, err := run.Report()
		require.NoError(t, err)
		data, err := json.MarshalIndent(report, "", "  ")
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(options.ReportOutputPath, append(data, '\n'), 0o644))
	})
	run.Setup(t, tests.ConformanceTests)
	require.NoError(t, run.Run(t, tests.ConformanceTests))
}
