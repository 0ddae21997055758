-- Ends the lease, if it is still this one's.
local lease = KEYS[3]
if redis.call('HGET', lease, 'holder') == ARGV[1] then
  redis.call('DEL', lease)
end
return {'done'}
