import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecord;
import org.apache.kafka.coordinator.group.GroupCoordinatorRecordSerde;

/** Reads records as Kafka's own coordinator does, and writes each again as that would: key, value, and what it says. */
public class ReadRecords {
    public static void main(String[] arguments) throws Exception {
        GroupCoordinatorRecordSerde serde = new GroupCoordinatorRecordSerde();
        HexFormat hex = HexFormat.of();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split(" ");
            ByteBuffer value = parts[1].equals("-") ? null : ByteBuffer.wrap(hex.parseHex(parts[1]));
            CoordinatorRecord record = serde.deserialize(ByteBuffer.wrap(hex.parseHex(parts[0])), value);
            byte[] written = serde.serializeValue(record);
            System.out.println(hex.formatHex(serde.serializeKey(record)) + " "
                + (written == null ? "-" : hex.formatHex(written)) + " "
                + record.key() + " " + (record.value() == null ? "null" : record.value().message()));
        }
    }
}
